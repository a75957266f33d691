/* The load: clients that cost so little that the server is what is measured.
 *
 *   load produce PORT TOPIC BATCH MESSAGES CONNECTIONS PARTITIONS CODEC   pipelined requests of BATCH messages each, MESSAGES in all, the connections and the
 *                                                                         partitions taking turns; CODEC 1 wraps each batch with gzip
 *   load fetch PORT TOPIC SIZE BYTES END CONSUMERS PAUSE                  BYTES in all, in fetches of SIZE, round and round from offset 0 to END; a thread
 *                                                                         each, which waits PAUSE microseconds after each fetch
 *   load hot PORT TOPIC SIZE END SECONDS PAUSE                            one consumer that waits PAUSE microseconds after each fetch; prints latencies
 *   load visit PORT TOPIC VISITORS                                        connects them all; then each sends one request of one message and waits for the end
 *
 * The messages have 200 bytes and look like lines of a web server's log. Each producing connection ends with an OFFSETS request, whose answer says
 * that all before it has been carried out. Prints one line of names and values; cpu is the load's own, in seconds. Loopback only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define PAYLOAD_SIZE 200
#define ENTRY_SIZE (10 + PAYLOAD_SIZE)
#define BLOCK_SIZE (256 << 10)
#define RECEIVE_SIZE (1 << 20)
#define TURN_SIZE (64 << 10)
#define LATENCY_COUNT (1 << 20)

enum { PRODUCE = 0, FETCH = 1, OFFSETS = 4 };

static int port;
static const char *topic;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static double cpuSeconds(void) { return seconds(CLOCK_PROCESS_CPUTIME_ID); }

static void *memory(size_t size)
{
    void *found = calloc(1, size);
    if (!found) err(1, "calloc");
    return found;
}

/* -- writing requests --------------------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *to, uint64_t value, int size)
{
    value = htobe64(value << (64 - 8 * size));
    memcpy(to, &value, size);
    return to + size;
}

/* All of a request up to its topic and partition; the frame's size is put in by endRequest. */
static uint8_t *beginRequest(uint8_t *frame, int kind, int partition)
{
    uint8_t *to = put(put(frame + 4, kind, 2), strlen(topic), 2);
    memcpy(to, topic, strlen(topic));
    return put(to + strlen(topic), partition, 4);
}

static size_t endRequest(uint8_t *frame, uint8_t *end)
{
    put(frame, end - frame - 4, 4);
    return end - frame;
}

static uint64_t chance(void)
{
    static uint64_t state = 0x2545F4914F6CDD1D;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint8_t *putEntry(uint8_t *to, int codec, const uint8_t *payload, size_t size)
{
    to = put(put(put(put(to, 6 + size, 4), 1, 1), codec, 1), crc32(0, payload, size), 4);
    memcpy(to, payload, size);
    return to + size;
}

static uint8_t *putLine(uint8_t *to)
{
    static int number;
    char line[2 * PAYLOAD_SIZE];
    unsigned host = chance() % 40, page = chance() % 5000, size = chance() % 90000, visitor = chance();
    number++;
    int done = snprintf(line, sizeof line,
                        "{\"time\":\"2011-06-12T10:%02d:%02d.%03dZ\",\"host\":\"web-%03u.example.org\",\"method\":\"GET\",\"path\":\"/articles/%u.html\","
                        "\"status\":200,\"size\":%u,\"visitor\":\"%08x\",\"referrer\":\"http://www.example.org/search?q=%u\",\"note\":\"",
                        number / 60000 % 60, number / 1000 % 60, number % 1000, host, page, size, visitor, page * 7 % 1000);
    for (; done < PAYLOAD_SIZE; done++) line[done] = 'a' + chance() % 16;
    return putEntry(to, 0, (uint8_t *)line, PAYLOAD_SIZE);
}

/* The message set of every produce request. */
static uint8_t *makeSet(int batch, int codec, size_t *size)
{
    uint8_t *plain = memory((size_t)batch * ENTRY_SIZE), *end = plain;
    for (int i = 0; i < batch; i++) end = putLine(end);
    *size = end - plain;
    if (!codec) return plain;
    z_stream stream = {0};
    if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) errx(1, "no deflate");
    size_t sizeMax = deflateBound(&stream, *size);
    uint8_t *packed = memory(sizeMax), *set = memory(10 + sizeMax);
    stream.next_in = plain;
    stream.avail_in = *size;
    stream.next_out = packed;
    stream.avail_out = sizeMax;
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END) errx(1, "deflate");
    *size = putEntry(set, codec, packed, stream.total_out) - set;
    return set;
}

/* -- sockets ------------------------------------------------------------------------------------------------------ */

static int dial(void)
{
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(sock, (struct sockaddr *)&address, sizeof address)) err(1, "connect");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return sock;
}

static void sendWhole(int sock, const uint8_t *from, size_t size)
{
    while (size) {
        ssize_t sent = send(sock, from, size, MSG_NOSIGNAL);
        if (sent < 0) err(1, "send");
        from += sent;
        size -= sent;
    }
}

/* Into one place, over and over: what is received is not looked at. */
static void receiveWhole(int sock, uint8_t *to, size_t size)
{
    while (size) {
        ssize_t got = recv(sock, to, size < RECEIVE_SIZE ? size : RECEIVE_SIZE, 0);
        if (got <= 0) errx(1, "the server closed the connection");
        size -= got;
    }
}

/* -- produce ------------------------------------------------------------------------------------------------------ */

struct producer {
    int sock;
    uint8_t *block; /* whole requests, sent round and round */
    size_t blockSize, at, left;
};

static void closeWhenCarriedOut(int sock)
{
    uint8_t request[512], answer[512];
    size_t size = endRequest(request, put(put(beginRequest(request, OFFSETS, 0), -1, 8), 1, 4));
    fcntl(sock, F_SETFL, 0);
    sendWhole(sock, request, size);
    if (recv(sock, answer, sizeof answer, 0) <= 0) errx(1, "the server closed the connection");
    close(sock);
}

static void produce(int batch, long messageCount, int connectionCount, int partitionCount, int codec)
{
    size_t setSize, headSize = 16 + strlen(topic);
    uint8_t *set = makeSet(batch, codec, &setSize);
    size_t requestSize = headSize + setSize;
    long requestCount = messageCount / batch / connectionCount;
    long blockCount = BLOCK_SIZE / requestSize ? (long)(BLOCK_SIZE / requestSize) : 1;
    if (partitionCount > 1) blockCount = (blockCount + partitionCount - 1) / partitionCount * partitionCount; /* so that all get the same */
    if (blockCount > requestCount) blockCount = requestCount;
    if (!requestCount) errx(2, "not one request a connection");
    struct producer *producers = memory(connectionCount * sizeof *producers);
    int poll = epoll_create1(EPOLL_CLOEXEC), live = connectionCount;
    for (int i = 0; i < connectionCount; i++) {
        struct producer *producer = producers + i;
        uint8_t *to = producer->block = memory(blockCount * requestSize);
        for (long j = 0; j < blockCount; j++) {
            uint8_t *frame = to;
            to = put(beginRequest(frame, PRODUCE, (i + j) % partitionCount), setSize, 4);
            memcpy(to, set, setSize);
            endRequest(frame, to += setSize);
        }
        producer->blockSize = blockCount * requestSize;
        producer->left = requestCount * requestSize;
        producer->sock = dial();
        fcntl(producer->sock, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLOUT, .data.ptr = producer};
        epoll_ctl(poll, EPOLL_CTL_ADD, producer->sock, &event);
    }
    double begun = seconds(CLOCK_MONOTONIC), cpuBegun = cpuSeconds();
    while (live) {
        struct epoll_event events[64];
        int count = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            struct producer *producer = events[i].data.ptr;
            size_t size = producer->blockSize - producer->at;
            if (connectionCount > 1 && size > TURN_SIZE) size = TURN_SIZE;
            if (size > producer->left) size = producer->left;
            ssize_t sent = send(producer->sock, producer->block + producer->at, size, MSG_NOSIGNAL);
            if (sent < 0 && errno == EAGAIN) continue;
            if (sent < 0) err(1, "send");
            producer->left -= sent;
            producer->at = (producer->at + sent) % producer->blockSize;
            if (!producer->left) {
                epoll_ctl(poll, EPOLL_CTL_DEL, producer->sock, NULL);
                live--;
            }
        }
    }
    for (int i = 0; i < connectionCount; i++) closeWhenCarriedOut(producers[i].sock);
    printf("seconds %.6f cpu %.6f messages %ld bytes %ld\n", seconds(CLOCK_MONOTONIC) - begun, cpuSeconds() - cpuBegun,
           requestCount * batch * connectionCount, requestCount * (long)requestSize * connectionCount);
}

/* -- fetch -------------------------------------------------------------------------------------------------------- */

struct consumer {
    pthread_t thread;
    int sock;
    long size, left, end, offset, got;
    double pause;
    uint8_t *buffer;
};

static long fetchOne(struct consumer *consumer)
{
    uint8_t request[512], head[6];
    sendWhole(consumer->sock, request, endRequest(request, put(put(beginRequest(request, FETCH, 0), consumer->offset, 8), consumer->size, 4)));
    for (size_t have = 0; have < sizeof head;) {
        ssize_t got = recv(consumer->sock, head + have, sizeof head - have, 0);
        if (got <= 0) errx(1, "the server closed the connection");
        have += got;
    }
    if (head[4] || head[5]) errx(1, "error code %d", (int16_t)(head[4] << 8 | head[5]));
    uint32_t frame;
    memcpy(&frame, head, 4);
    long size = be32toh(frame) - 2;
    if (size <= 0) errx(1, "nothing at offset %ld", consumer->offset);
    receiveWhole(consumer->sock, consumer->buffer, size);
    consumer->offset += size;
    if (consumer->offset + consumer->size > consumer->end) consumer->offset = 0;
    return size;
}

static void *consume(void *argument)
{
    struct consumer *consumer = argument;
    while (consumer->got < consumer->left) {
        consumer->got += fetchOne(consumer);
        if (consumer->pause > 0) usleep(consumer->pause);
    }
    return NULL;
}

static void beginConsumer(struct consumer *consumer, long size, long end)
{
    consumer->sock = dial();
    consumer->size = size;
    consumer->end = end;
    consumer->buffer = memory(RECEIVE_SIZE);
}

static void fetch(long size, long total, long end, int consumerCount, double pause)
{
    struct consumer *consumers = memory(consumerCount * sizeof *consumers);
    for (int i = 0; i < consumerCount; i++) {
        beginConsumer(consumers + i, size, end);
        consumers[i].left = total / consumerCount;
        consumers[i].pause = pause;
        consumers[i].offset = end / size / consumerCount * i * size;
    }
    double begun = seconds(CLOCK_MONOTONIC), cpuBegun = cpuSeconds();
    long got = 0;
    for (int i = 0; i < consumerCount; i++)
        if (pthread_create(&consumers[i].thread, NULL, consume, consumers + i)) errx(1, "pthread_create");
    for (int i = 0; i < consumerCount; i++) {
        pthread_join(consumers[i].thread, NULL);
        got += consumers[i].got;
    }
    printf("seconds %.6f cpu %.6f bytes %ld\n", seconds(CLOCK_MONOTONIC) - begun, cpuSeconds() - cpuBegun, got);
}

static int byValue(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void hot(long size, long end, double duration, double pause)
{
    struct consumer consumer = {0};
    beginConsumer(&consumer, size, end);
    double *latency = memory(LATENCY_COUNT * sizeof *latency), begun = seconds(CLOCK_MONOTONIC);
    long count = 0;
    while (count < LATENCY_COUNT && seconds(CLOCK_MONOTONIC) - begun < duration) {
        double asked = seconds(CLOCK_MONOTONIC);
        fetchOne(&consumer);
        latency[count++] = (seconds(CLOCK_MONOTONIC) - asked) * 1e6;
        if (pause > 0) usleep(pause);
    }
    qsort(latency, count, sizeof *latency, byValue);
    printf("seconds %.6f cpu %.6f fetches %ld p50 %.1f p99 %.1f worst %.1f\n", seconds(CLOCK_MONOTONIC) - begun, cpuSeconds(), count, latency[count / 2],
           latency[count * 99 / 100], latency[count - 1]);
}

/* -- visit -------------------------------------------------------------------------------------------------------- */

static void visit(int visitorCount)
{
    size_t setSize;
    uint8_t *set = makeSet(1, 0, &setSize), *frame = memory(16 + strlen(topic) + setSize), answer[64];
    uint8_t *to = put(beginRequest(frame, PRODUCE, 0), setSize, 4);
    memcpy(to, set, setSize);
    size_t size = endRequest(frame, to + setSize);
    int *socks = memory(visitorCount * sizeof *socks);
    double begun = seconds(CLOCK_MONOTONIC), cpuBegun = cpuSeconds();
    for (int i = 0; i < visitorCount; i++) socks[i] = dial();
    double connected = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < visitorCount; i++) {
        sendWhole(socks[i], frame, size);
        shutdown(socks[i], SHUT_WR);
    }
    for (int i = 0; i < visitorCount; i++) { /* a server that has carried out everything closes */
        if (recv(socks[i], answer, sizeof answer, 0) != 0) errx(1, "no orderly end");
        close(socks[i]);
    }
    double ended = seconds(CLOCK_MONOTONIC);
    printf("seconds %.6f cpu %.6f visits %d connecting %.6f\n", ended - begun, cpuSeconds() - cpuBegun, visitorCount, connected - begun);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit descriptors;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);
    if (argc > 4) {
        port = atoi(argv[2]);
        topic = argv[3];
        if (strlen(topic) > 255) errx(2, "topic name too long");
    }
    if (argc == 9 && !strcmp(argv[1], "produce")) produce(atoi(argv[4]), atol(argv[5]), atoi(argv[6]), atoi(argv[7]), atoi(argv[8]));
    else if (argc == 9 && !strcmp(argv[1], "fetch")) fetch(atol(argv[4]), atol(argv[5]), atol(argv[6]), atoi(argv[7]), atof(argv[8]));
    else if (argc == 8 && !strcmp(argv[1], "hot")) hot(atol(argv[4]), atol(argv[5]), atof(argv[6]), atof(argv[7]));
    else if (argc == 5 && !strcmp(argv[1], "visit")) visit(atoi(argv[4]));
    else errx(2, "usage: see the head of load.c");
    return 0;
}
