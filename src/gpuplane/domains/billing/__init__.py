"""The price book, and what work costs."""
