"""Real servers for the tests, started on this machine and gone with the test run.

The rig owns finding, starting and stopping other people's programs; it never imports the product.
"""
