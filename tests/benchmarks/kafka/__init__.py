"""The benchmarks of today's dialect; L{tests.benchmarks.kafka.__main__} runs them."""
