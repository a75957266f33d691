"""The broker: listens, understands requests, keeps partitions, answers. Floor 4."""
