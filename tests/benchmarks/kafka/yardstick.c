/* The yardstick of today's dialect: what a broker cannot do without, in C, in one thread.
 *
 *   yardstick receive PORT DIRECTORY    takes Produce requests of versions 9 to 12 with one topic and one partition: checks the CRC-32C of the batch,
 *                                       stamps its base offset and leader epoch, appends it to one file, answers. acks=all is answered after an
 *                                       fdatasync, one for all requests of a turn; those that arrive meanwhile share the next
 *   yardstick serve PORT FILE SIZE      answers each frame, whatever is in it, with SIZE bytes of FILE, round and round, by sendfile
 *
 * PORT 0 takes a free one. The first line of output is the port. It ends with the process that started it, or when killed. There are no limits, and
 * nonsense ends the process: it is no server. Frames are stamped where they were received, so no byte is copied between recv and writev.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "checksum.h"

#define TURN_SIZE (256 << 10)
#define FRAME_SIZE_MAX (16 << 20)
#define GATHER_COUNT 1024
#define ANSWER_SIZE_MAX 400
#define HEAD_SIZE 61

struct peer {
    int sock;
    uint8_t *buffer;
    size_t size, bodyLeft;
    uint8_t head[8];
    size_t headLeft;
    off_t position;
};

static int file;
static bool serving;
static off_t servedSize;
static size_t answerSize;
static uint64_t nextOffset;
static struct iovec gather[GATHER_COUNT];
static uint8_t answers[GATHER_COUNT * ANSWER_SIZE_MAX];
static int gatherCount;
static size_t answersSize;

static uint32_t int32At(const uint8_t *p)
{
    uint32_t big;
    memcpy(&big, p, sizeof big);
    return be32toh(big);
}

static void put32(uint8_t *to, uint32_t value)
{
    value = htobe32(value);
    memcpy(to, &value, sizeof value);
}

static void put64(uint8_t *to, uint64_t value)
{
    value = htobe64(value);
    memcpy(to, &value, sizeof value);
}

static uint32_t varint(uint8_t **at)
{
    uint32_t found = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        found |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return found;
    }
}

/* One request; returns whether it must be flushed before the answer. */
static bool take(uint8_t *frame, size_t size)
{
    uint8_t *end = frame + size, *at = frame + 10;
    int version = frame[2] << 8 | frame[3];
    if (frame[0] || frame[1] || version < 9 || version > 12) errx(1, "request %d of version %d", frame[1], version);
    at += frame[8] << 8 | frame[9]; /* client id */
    if (*at++) errx(1, "tags");
    at += *at ? *at : 1; /* transactional id */
    bool isAll = at[0] == 0xFF;
    at += 6;
    if (varint(&at) != 2) errx(1, "topics");
    uint8_t *name = at;
    uint32_t nameSize = varint(&at) - 1;
    at += nameSize;
    size_t headSize = at - name;
    if (varint(&at) != 2) errx(1, "partitions");
    uint32_t index = int32At(at);
    at += 4;
    size_t batchSize = varint(&at) - 1;
    if (at + batchSize + 3 != end || batchSize < HEAD_SIZE || int32At(at + 8) + 12 != batchSize || at[16] != 2) errx(1, "batch");
    if (checksum(at + 21, batchSize - 21) != int32At(at + 17)) errx(1, "checksum");
    uint32_t last = int32At(at + 23);
    if (int32At(at + 57) != last + 1) errx(1, "counts");
    put64(at, nextOffset);
    put32(at + 12, 0);
    gather[gatherCount++] = (struct iovec){at, batchSize};
    uint8_t *answer = answers + answersSize, *to = answer + 4;
    memcpy(to, frame + 4, 4); /* correlation id */
    to += 4;
    *to++ = 0;
    *to++ = 2;
    memcpy(to, name, headSize);
    to += headSize;
    *to++ = 2;
    put32(to, index);
    to[4] = to[5] = 0;
    put64(to + 6, nextOffset);
    put64(to + 14, -1);
    put64(to + 22, 0);
    to += 30;
    memcpy(to, "\1\0\0\0\0\0\0\0\0", 9); /* no errors, no text, tags, tags, throttle time, tags */
    to += 9;
    put32(answer, to - answer - 4);
    answersSize += to - answer;
    nextOffset += last + 1;
    return isAll;
}

static void answerAll(struct peer *peer, bool isFlushed)
{
    if (!gatherCount) return;
    if (writev(file, gather, gatherCount) < 0) err(1, "writev");
    gatherCount = 0;
    if (isFlushed && fdatasync(file)) err(1, "fdatasync");
    if (send(peer->sock, answers, answersSize, MSG_NOSIGNAL) != (ssize_t)answersSize) errx(1, "answers not sent");
    answersSize = 0;
}

static bool receive(struct peer *peer)
{
    ssize_t got = recv(peer->sock, peer->buffer + peer->size, TURN_SIZE, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    peer->size += got;
    size_t at = 0;
    bool isFlushed = false;
    while (peer->size - at >= 4) {
        size_t size = int32At(peer->buffer + at);
        if (size < 30 || size > FRAME_SIZE_MAX - 4) errx(1, "frame of %zu bytes", size);
        if (size > peer->size - at - 4) break;
        isFlushed |= take(peer->buffer + at + 4, size);
        at += 4 + size;
        if (gatherCount == GATHER_COUNT) answerAll(peer, isFlushed);
    }
    answerAll(peer, isFlushed);
    peer->size -= at;
    memmove(peer->buffer, peer->buffer + at, peer->size);
    return true;
}

/* Returns 1 when the answer is out, 0 when the socket is full, -1 when it is broken. */
static int sendOn(struct peer *peer)
{
    while (peer->headLeft) {
        ssize_t sent = send(peer->sock, peer->head + sizeof peer->head - peer->headLeft, peer->headLeft, MSG_NOSIGNAL | MSG_MORE);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        peer->headLeft -= sent;
    }
    while (peer->bodyLeft) {
        ssize_t sent = sendfile(peer->sock, file, &peer->position, peer->bodyLeft);
        if (sent < 0 && errno == EAGAIN) return 0;
        if (sent <= 0) return -1;
        peer->bodyLeft -= sent;
    }
    return 1;
}

static bool serve(struct peer *peer)
{
    for (;;) {
        while (peer->headLeft || peer->bodyLeft) {
            int outcome = sendOn(peer);
            if (outcome < 1) return outcome == 0;
        }
        size_t size = peer->size < 4 ? 0 : 4 + int32At(peer->buffer);
        if (size && size <= peer->size) {
            if (peer->position + (off_t)answerSize > servedSize) peer->position = 0;
            put32(peer->head, 4 + answerSize);
            memcpy(peer->head + 4, peer->buffer + 8, 4);
            peer->headLeft = sizeof peer->head;
            peer->bodyLeft = answerSize;
            peer->size -= size;
            memmove(peer->buffer, peer->buffer + size, peer->size);
            continue;
        }
        ssize_t got = recv(peer->sock, peer->buffer + peer->size, 4096, 0);
        if (got < 0 && errno == EAGAIN) return true;
        if (got <= 0) return false;
        peer->size += got;
    }
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "receive") && (strcmp(argv[1], "serve") || argc < 5))) errx(2, "usage: see the head of yardstick.c");
    serving = !strcmp(argv[1], "serve");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (serving) {
        file = open(argv[3], O_RDONLY | O_CLOEXEC);
        servedSize = lseek(file, 0, SEEK_END);
        answerSize = atol(argv[4]);
    } else {
        char path[4096];
        snprintf(path, sizeof path, "%s/received", argv[3]);
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    if (file < 0) err(1, "%s", argv[3]);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addressSize = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, addressSize) || listen(listener, 4096)) err(1, "listen");
    if (getsockname(listener, (struct sockaddr *)&address, &addressSize)) err(1, "getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[64], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (!peer) {
                int sock = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (sock < 0) continue;
                setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (!(peer = calloc(1, sizeof *peer)) || !(peer->buffer = malloc(FRAME_SIZE_MAX + TURN_SIZE))) err(1, "memory");
                peer->sock = sock;
                event.data.ptr = peer;
                event.events = serving ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN;
                epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event);
            } else if (!(serving ? serve(peer) : receive(peer))) {
                close(peer->sock);
                free(peer->buffer);
                free(peer);
            }
        }
    }
}
