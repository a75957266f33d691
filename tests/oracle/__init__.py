"""
The differential test: the same requests to Apache Kafka 4.3.1 and to this broker, whose answers
must be equal. Apache's are recorded once, by hand, in C{tests/golden/kafka43/answers}; the gate
compares with the record and needs no JVM.

- C{steps}: what a scenario yields; C{scenarios/}: the scenarios.
- C{conversation}: runs a scenario against a broker over plain sockets, and writes down the answers.
- C{normaliser}: gives ids, times and addresses the same names on every broker.
- C{comparer}: the differences, and the list of those that are deliberate (C{differences.json}).
- C{apachebroker}: fetches and runs Apache Kafka.

C{python -m tests.oracle --help} tells the rest.
"""
