"""
Compaction of topics of today's protocol: what decides (L{LogCleaner}), and what runs in a process
of its own.
"""
