/* The load of today's dialect: a client that costs so little that the server is what is measured. Requests come whole from a file; only the
 * correlation id, and the offset of a fetch, are put in.
 *
 *   load produce PORT FRAME COUNT IN_FLIGHT ERROR_AT            COUNT requests on one connection, up to IN_FLIGHT without an answer, as producers do;
 *                                                               each answer must have no error code at byte ERROR_AT
 *   load paced PORT FRAME SECONDS PAUSE ERROR_AT                one request at a time, PAUSE microseconds after each answer; prints latencies
 *   load fetch PORT FRAME BYTES OFFSET_AT STEP END              one fetch at a time until BYTES were received; the offset grows by STEP, up to END
 *   load keyed PORT FRAME BATCHES RECORDS VALUE_SIZE SEED SPAN  BATCHES requests whose one batch is made here: RECORDS records, keys of 16 digits
 *                                                               that are scattered over SPAN numbers in steps, values of VALUE_SIZE bytes. FRAME is
 *                                                               all up to the batch; five are in flight
 *
 * Prints one line of names and values; cpu is the load's own, in seconds. Loopback only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "checksum.h"

#define RECEIVE_SIZE (1 << 20)
#define LATENCY_COUNT (1 << 20)
#define CORRELATION_AT 8

static int sock;
static uint8_t *received;
static size_t receivedSize;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void *memory(size_t size)
{
    void *found = calloc(1, size);
    if (!found) err(1, "calloc");
    return found;
}

static uint8_t *put(uint8_t *to, uint64_t value, int size)
{
    value = htobe64(value << (64 - 8 * size));
    memcpy(to, &value, size);
    return to + size;
}

static uint32_t int32At(const uint8_t *p)
{
    uint32_t big;
    memcpy(&big, p, sizeof big);
    return be32toh(big);
}

static uint8_t *readFile(const char *path, size_t *size)
{
    int file = open(path, O_RDONLY);
    if (file < 0) err(1, "%s", path);
    *size = lseek(file, 0, SEEK_END);
    uint8_t *found = memory(*size + (4 << 20));
    if (pread(file, found, *size, 0) != (ssize_t)*size) err(1, "%s", path);
    close(file);
    return found;
}

static void dial(int port)
{
    int on = 1;
    sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(sock, (struct sockaddr *)&address, sizeof address)) err(1, "connect");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    received = memory(RECEIVE_SIZE);
}

static void sendWhole(const uint8_t *from, size_t size)
{
    while (size) {
        ssize_t sent = send(sock, from, size, MSG_NOSIGNAL);
        if (sent < 0) err(1, "send");
        from += sent;
        size -= sent;
    }
}

/* Waits for answers; returns how many came whole. */
static long takeAnswers(size_t errorAt)
{
    long count = 0;
    ssize_t got = recv(sock, received + receivedSize, RECEIVE_SIZE - receivedSize, 0);
    if (got <= 0) errx(1, "the server closed the connection");
    receivedSize += got;
    size_t at = 0;
    while (receivedSize - at >= 4) {
        size_t size = 4 + int32At(received + at);
        if (size > receivedSize - at) break;
        if (size <= errorAt + 1 || received[at + errorAt] || received[at + errorAt + 1])
            errx(1, "error %d in an answer of %zu bytes", (int16_t)(received[at + errorAt] << 8 | received[at + errorAt + 1]), size);
        at += size;
        count++;
    }
    receivedSize -= at;
    memmove(received, received + at, receivedSize);
    return count;
}

static void produce(const char *path, long count, long inFlight, size_t errorAt)
{
    size_t size;
    uint8_t *frame = readFile(path, &size);
    double begun = seconds(CLOCK_MONOTONIC);
    for (long sent = 0, done = 0; done < count;) {
        while (sent < count && sent - done < inFlight) {
            put(frame + CORRELATION_AT, sent++, 4);
            sendWhole(frame, size);
        }
        done += takeAnswers(errorAt);
    }
    printf("seconds %.6f cpu %.6f requests %ld\n", seconds(CLOCK_MONOTONIC) - begun, seconds(CLOCK_PROCESS_CPUTIME_ID), count);
}

static int byValue(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void paced(const char *path, double duration, double pause, size_t errorAt)
{
    size_t size;
    uint8_t *frame = readFile(path, &size);
    double *latency = memory(LATENCY_COUNT * sizeof *latency), begun = seconds(CLOCK_MONOTONIC);
    long count = 0;
    while (count < LATENCY_COUNT && seconds(CLOCK_MONOTONIC) - begun < duration) {
        double asked = seconds(CLOCK_MONOTONIC);
        put(frame + CORRELATION_AT, count, 4);
        sendWhole(frame, size);
        while (!takeAnswers(errorAt)) continue;
        latency[count++] = (seconds(CLOCK_MONOTONIC) - asked) * 1e3;
        if (pause > 0) usleep(pause);
    }
    qsort(latency, count, sizeof *latency, byValue);
    printf("seconds %.6f requests %ld p50 %.3f p99 %.3f worst %.3f\n", seconds(CLOCK_MONOTONIC) - begun, count, latency[count / 2],
           latency[count * 99 / 100], latency[count - 1]);
}

static void fetch(const char *path, long total, size_t offsetAt, long step, long end)
{
    size_t size;
    uint8_t *frame = readFile(path, &size);
    double begun = seconds(CLOCK_MONOTONIC);
    long got = 0, count = 0, offset = 0;
    for (; got < total; count++) {
        put(frame + CORRELATION_AT, count, 4);
        put(frame + offsetAt, offset, 8);
        sendWhole(frame, size);
        size_t have = 0;
        long left = 4;
        while (left > 0) {
            ssize_t one = recv(sock, received, RECEIVE_SIZE, 0);
            if (one <= 0) errx(1, "the server closed the connection");
            if (!have) {
                if (one < 4) errx(1, "a very short answer");
                left = 4 + int32At(received);
                if (left < 1000) errx(1, "an answer of %ld bytes at offset %ld", left, offset);
            }
            have += one;
            left -= one;
        }
        got += have;
        offset += step;
        if (offset + step > end) offset = 0;
    }
    printf("seconds %.6f cpu %.6f bytes %ld requests %ld\n", seconds(CLOCK_MONOTONIC) - begun, seconds(CLOCK_PROCESS_CPUTIME_ID), got, count);
}

static uint8_t *putVarint(uint8_t *to, uint64_t number)
{
    for (; number > 127; number >>= 7) *to++ = number | 0x80;
    *to++ = number;
    return to;
}

static uint8_t *putRecord(uint8_t *to, int delta, uint64_t key, int valueSize)
{
    uint8_t body[64], *end = body;
    *end++ = 0; /* attributes */
    *end++ = 0; /* timestamp */
    end = putVarint(end, (uint64_t)delta << 1);
    *end++ = 16 << 1;
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)key);
    memcpy(end, digits, 16);
    end = putVarint(end + 16, (uint64_t)valueSize << 1);
    size_t size = end - body;
    to = putVarint(to, (uint64_t)(size + valueSize + 1) << 1);
    memcpy(to, body, size);
    to += size;
    for (int i = 0; i < valueSize; i++) to[i] = 'a' + (key + i) % 16;
    to += valueSize;
    *to++ = 0; /* headers */
    return to;
}

static void keyed(const char *path, long batchCount, int recordCount, int valueSize, long seed, long span)
{
    size_t headSize;
    uint8_t *frame = readFile(path, &headSize), *batch = memory(headSize + 64 + (size_t)recordCount * (valueSize + 48)), *whole = memory(headSize + 64 + (size_t)recordCount * (valueSize + 48));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t nowMs = now.tv_sec * 1000ull + now.tv_nsec / 1000000, key = seed;
    double begun = seconds(CLOCK_MONOTONIC);
    long sent = 0, done = 0;
    while (done < batchCount) {
        while (sent < batchCount && sent - done < 5) {
            uint8_t *to = batch + 61;
            for (int i = 0; i < recordCount; i++) {
                to = putRecord(to, i, key * 0x9E3779B97F4A7C15ull, valueSize);
                key = (key + 7919) % span; /* a prime: every number comes once in SPAN steps */
            }
            size_t size = to - batch;
            uint8_t *at = put(put(batch, 0, 8), size - 12, 4);
            at = put(at, -1, 4);
            *at = 2;
            at = put(at + 5, 0, 2);
            at = put(put(put(at, recordCount - 1, 4), nowMs, 8), nowMs, 8);
            put(put(put(put(at, -1, 8), -1, 2), -1, 4), recordCount, 4);
            put(batch + 17, checksum(batch + 21, size - 21), 4);
            memcpy(whole, frame, headSize);
            to = putVarint(whole + headSize, size + 1);
            memcpy(to, batch, size);
            to += size;
            memset(to, 0, 3);
            to += 3;
            put(whole, to - whole - 4, 4);
            put(whole + CORRELATION_AT, sent++, 4);
            sendWhole(whole, to - whole);
        }
        done += takeAnswers(0);
    }
    printf("seconds %.6f cpu %.6f records %ld\n", seconds(CLOCK_MONOTONIC) - begun, seconds(CLOCK_PROCESS_CPUTIME_ID), batchCount * recordCount);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc < 4) errx(2, "usage: see the head of load.c");
    dial(atoi(argv[2]));
    if (argc == 7 && !strcmp(argv[1], "produce")) produce(argv[3], atol(argv[4]), atol(argv[5]), atol(argv[6]));
    else if (argc == 7 && !strcmp(argv[1], "paced")) paced(argv[3], atof(argv[4]), atof(argv[5]), atol(argv[6]));
    else if (argc == 8 && !strcmp(argv[1], "fetch")) fetch(argv[3], atol(argv[4]), atol(argv[5]), atol(argv[6]), atol(argv[7]));
    else if (argc == 9 && !strcmp(argv[1], "keyed")) keyed(argv[3], atol(argv[4]), atoi(argv[5]), atoi(argv[6]), atol(argv[7]), atol(argv[8]));
    else errx(2, "usage: see the head of load.c");
    return 0;
}
