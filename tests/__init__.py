"""The tests of pylogbroker; they mirror the package file for file."""
