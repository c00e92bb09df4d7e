"""One module for a group of commands; each is imported only when it is called."""
