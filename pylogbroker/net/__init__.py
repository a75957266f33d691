"""The Twisted layer over bytes: listeners, TLS, sendfile, HTTP, workers, timers. Floor 2."""
