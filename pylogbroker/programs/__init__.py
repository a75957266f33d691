"""What C{twistd} starts, and a broker inside an application's process."""
