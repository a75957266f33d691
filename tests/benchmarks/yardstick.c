/* The yardstick: what a server of this protocol cannot do without, in C, in one thread.
 *
 *   yardstick receive PORT DIRECTORY    takes produce requests: finds the frames, checks every CRC (zlib's), opens gzip wrappers and checks what is
 *                                       inside, appends the sets to one file a partition; answers an OFFSETS request, with no offsets
 *   yardstick serve PORT FILE           answers fetch requests out of FILE with sendfile
 *
 * PORT 0 takes a free one. The first line of output is the port. It ends with the process that started it, or when killed.
 *
 * One epoll loop serves all connections, as the broker does: bare sendfile in a thread for each consumer would be another machine. All that is
 * received passes through one buffer; what is left of an unfinished frame stays where it is as long as the same connection goes on, and is
 * put aside only when another one needs the buffer. So a single pipelined connection costs a recv, a walk and a gather-write each turn.
 * There are no limits, no flushes, no second partition of the same number, and nonsense ends the process: it is no server.
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
#include <zlib.h>

#define TURN_SIZE (256 << 10)
#define FRAME_SIZE_MAX (16 << 20)
#define OPENED_SIZE_MAX (16 << 20)
#define GATHER_COUNT 1024
#define PARTITION_COUNT 1024
#define EVENT_COUNT 256

enum { PRODUCE = 0, FETCH = 1, OFFSETS = 4 };

struct peer {
    int sock;
    uint8_t *aside;  /* receive: the rest of a frame, put aside; serve: requests not answered yet */
    size_t asideSize;
    uint8_t head[6]; /* serve: the answer under way */
    size_t headLeft, bodyLeft;
    off_t position;
};

struct partition {
    int file;
    int count;
    struct iovec gather[GATHER_COUNT];
};

static const char *directory;
static struct partition *partitions[PARTITION_COUNT];
static struct partition *touched[PARTITION_COUNT];
static int touchedCount;
static uint8_t buffer[FRAME_SIZE_MAX + TURN_SIZE];
static size_t bufferSize;
static struct peer *tenant; /* whose bytes the buffer holds */
static int served;
static off_t servedSize;

static uint32_t int32At(const uint8_t *p)
{
    uint32_t big;
    memcpy(&big, p, sizeof big);
    return be32toh(big);
}

static uint16_t int16At(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

/* -- receiving ---------------------------------------------------------------------------------------------------- */

static void checkInside(const uint8_t *payload, size_t size, void (*check)(const uint8_t *, size_t))
{
    static z_stream stream;
    static uint8_t *opened;
    if (!opened) {
        opened = malloc(OPENED_SIZE_MAX);
        if (!opened || inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) errx(1, "no inflate");
    }
    inflateReset(&stream);
    stream.next_in = (uint8_t *)payload;
    stream.avail_in = size;
    stream.next_out = opened;
    stream.avail_out = OPENED_SIZE_MAX;
    if (inflate(&stream, Z_FINISH) != Z_STREAM_END) errx(1, "bad gzip: %s", stream.msg ? stream.msg : "too short or too long");
    check(opened, OPENED_SIZE_MAX - stream.avail_out);
}

static void checkSet(const uint8_t *entry, size_t left)
{
    while (left) {
        size_t size = left < 10 ? 0 : int32At(entry);
        if (size < 6 || size > left - 4 || entry[4] != 1) errx(1, "bad entry");
        if (crc32(0, entry + 10, size - 6) != int32At(entry + 6)) errx(1, "bad checksum");
        int codec = entry[5] & 3;
        if (codec == 1) checkInside(entry + 10, size - 6, checkSet);
        else if (codec) errx(1, "codec %d", codec);
        entry += 4 + size;
        left -= 4 + size;
    }
}

static void writeOut(struct partition *partition)
{
    if (partition->count && writev(partition->file, partition->gather, partition->count) < 0) err(1, "writev");
    partition->count = 0;
}

static void append(uint32_t number, uint8_t *set, size_t size)
{
    if (number >= PARTITION_COUNT) errx(1, "partition %u", number);
    struct partition *partition = partitions[number];
    if (!partition) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%u", directory, number);
        partition = partitions[number] = calloc(1, sizeof *partition);
        if (!partition || (partition->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0) err(1, "%s", path);
    }
    if (partition->count == GATHER_COUNT) writeOut(partition);
    if (!partition->count) {
        /* It may stand there already, written out in the middle of the turn; writing nothing twice does no harm. */
        if (touchedCount == PARTITION_COUNT) errx(1, "too many partitions in a turn");
        touched[touchedCount++] = partition;
    }
    partition->gather[partition->count++] = (struct iovec){set, size};
}

static void writeTouched(void)
{
    while (touchedCount) writeOut(touched[--touchedCount]);
}

static void answerOffsets(struct peer *peer)
{
    uint8_t answer[10] = {0, 0, 0, 6};
    if (send(peer->sock, answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) warn("offsets not answered");
}

/* Every whole frame in the buffer. Returns how many bytes those were. */
static size_t takeFrames(struct peer *peer)
{
    size_t at = 0;
    while (bufferSize - at >= 4) {
        uint8_t *frame = buffer + at;
        size_t size = int32At(frame);
        if (size < 2 || size > FRAME_SIZE_MAX - 4) errx(1, "frame of %zu bytes", size);
        if (size > bufferSize - at - 4) break;
        int kind = int16At(frame + 4);
        if (kind == PRODUCE) {
            uint8_t *behindTopic = frame + 8 + int16At(frame + 6);
            size_t setSize = int32At(behindTopic + 4);
            if (behindTopic + 8 + setSize != frame + 4 + size) errx(1, "bad produce request");
            checkSet(behindTopic + 8, setSize);
            append(int32At(behindTopic), behindTopic + 8, setSize);
        } else if (kind == OFFSETS) {
            answerOffsets(peer);
        } else {
            errx(1, "request of type %d", kind);
        }
        at += 4 + size;
    }
    return at;
}

static void moveIn(struct peer *peer)
{
    if (tenant == peer) return;
    if (tenant && bufferSize) {
        tenant->aside = malloc(bufferSize);
        if (!tenant->aside) err(1, "malloc");
        memcpy(tenant->aside, buffer, bufferSize);
        tenant->asideSize = bufferSize;
    }
    tenant = peer;
    bufferSize = peer->asideSize;
    if (peer->aside) {
        memcpy(buffer, peer->aside, bufferSize);
        free(peer->aside);
        peer->aside = NULL;
        peer->asideSize = 0;
    }
}

static bool receive(struct peer *peer)
{
    moveIn(peer);
    ssize_t size = recv(peer->sock, buffer + bufferSize, TURN_SIZE, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (size <= 0) {
        tenant = NULL;
        bufferSize = 0;
        return false;
    }
    bufferSize += size;
    size_t done = takeFrames(peer);
    writeTouched();
    bufferSize -= done;
    memmove(buffer, buffer + done, bufferSize);
    return true;
}

/* -- serving ------------------------------------------------------------------------------------------------------ */

/* Sends on. Returns 1 when the answer is out, 0 when the socket is full, -1 when it is broken. */
static int sendOn(struct peer *peer)
{
    while (peer->headLeft) {
        ssize_t sent = send(peer->sock, peer->head + sizeof peer->head - peer->headLeft, peer->headLeft, MSG_NOSIGNAL | (peer->bodyLeft ? MSG_MORE : 0));
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        peer->headLeft -= sent;
    }
    while (peer->bodyLeft) {
        ssize_t sent = sendfile(peer->sock, served, &peer->position, peer->bodyLeft);
        if (sent < 0 && errno == EAGAIN) return 0;
        if (sent <= 0) return -1;
        peer->bodyLeft -= sent;
    }
    return 1;
}

static void beginAnswer(struct peer *peer, const uint8_t *request)
{
    if (int16At(request + 4) != FETCH) errx(1, "request of type %d", int16At(request + 4));
    const uint8_t *range = request + 12 + int16At(request + 6);
    peer->position = (off_t)((uint64_t)int32At(range) << 32 | int32At(range + 4));
    peer->bodyLeft = int32At(range + 8);
    if (peer->position > servedSize) errx(1, "offset out of range");
    if ((off_t)peer->bodyLeft > servedSize - peer->position) peer->bodyLeft = servedSize - peer->position;
    uint32_t size = htobe32(2 + peer->bodyLeft);
    memset(peer->head, 0, sizeof peer->head);
    memcpy(peer->head, &size, sizeof size);
    peer->headLeft = sizeof peer->head;
}

static bool serve(struct peer *peer)
{
    enum { ASIDE_SIZE = 4096 };
    if (!peer->aside && !(peer->aside = malloc(ASIDE_SIZE))) err(1, "malloc");
    for (;;) {
        while (peer->headLeft || peer->bodyLeft) {
            int outcome = sendOn(peer);
            if (outcome < 1) return outcome == 0;
        }
        size_t size = peer->asideSize < 4 ? 0 : 4 + int32At(peer->aside);
        if (size && size <= peer->asideSize) {
            beginAnswer(peer, peer->aside);
            peer->asideSize -= size;
            memmove(peer->aside, peer->aside + size, peer->asideSize);
            continue;
        }
        ssize_t got = recv(peer->sock, peer->aside + peer->asideSize, ASIDE_SIZE - peer->asideSize, 0);
        if (got < 0 && errno == EAGAIN) return true;
        if (got <= 0) return false;
        peer->asideSize += got;
    }
}

/* -- the loop ----------------------------------------------------------------------------------------------------- */

static int listenOn(int port)
{
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(sock, (struct sockaddr *)&address, size) || listen(sock, 4096) || getsockname(sock, (struct sockaddr *)&address, &size)) err(1, "listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return sock;
}

int main(int argc, char **argv)
{
    if (argc != 4 || (strcmp(argv[1], "receive") && strcmp(argv[1], "serve"))) errx(2, "usage: yardstick receive PORT DIRECTORY | serve PORT FILE");
    bool serving = !strcmp(argv[1], "serve");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (serving) {
        served = open(argv[3], O_RDONLY | O_CLOEXEC);
        if (served < 0) err(1, "%s", argv[3]);
        servedSize = lseek(served, 0, SEEK_END);
    } else {
        directory = argv[3];
    }
    int listener = listenOn(atoi(argv[2])), poll = epoll_create1(EPOLL_CLOEXEC), on = 1;
    struct epoll_event events[EVENT_COUNT], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, EVENT_COUNT, -1);
        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;
            if (!peer) {
                int sock = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (sock < 0) continue;
                setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (!(peer = calloc(1, sizeof *peer))) err(1, "calloc");
                peer->sock = sock;
                event.data.ptr = peer;
                event.events = serving ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN;
                epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event);
            } else if (!(serving ? serve(peer) : receive(peer))) {
                close(peer->sock);
                free(peer->aside);
                free(peer);
            }
        }
    }
}
