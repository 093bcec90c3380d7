/*
 * The network: the loop, and virtio network cards.
 *
 * The machine has eth0 and eth1 on one hub of the emulator's, and eth2 on the emulator's own network, which has a sink and a source
 * of bytes. There is a peer beyond eth0 that is played here: its frames are put on the wire at eth1, by a packet socket, and what is
 * sent to it is taken there, or, under a hardware address that nobody has, is lost in the emulator. What this program does for the
 * peer is measured by itself, first, and left out.
 *
 * Nothing here sleeps while it measures: where something has to come, it spins, and the turns of that are left out as well. So what
 * remains is what the kernel executes, interrupts and all.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ETHERNET = 14, IP = 20, TCP = 20, UDP = 8, MTU = 1500 };
/* Frames of a burst: fewer than a card's queue takes. */
enum { BURST = 32 };
/* Turns of a spin in which the emulator carries what is on its way. */
enum { CARRIED = 300000, SOON = 5000 };
/* Spins until something that must come is given up. */
enum { PATIENCE = 20000 };

#define OWN "10.0.9.2"
#define PEER "10.0.9.9"
/* The peer has this address and those behind it: each for so many connections, from this port on. */
enum { PEER_ADDRESS = 10 << 24 | 9 << 8 | 9, PEER_ADDRESSES = 2, FIRST_PORT = 1024, PORTS = 60000 };
/* An address of the emulator's own network that nobody has. */
#define ABYSS "10.0.2.99"

/* Instructions that this program has spun, to be left out. */
static uint64_t spun;

/* Two instructions a turn. */
static void spin(uint64_t turns)
{
    spun += 2 * turns;
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(turns));
}

/* Instructions since some moment, without those that were spun. */
static uint64_t worked(void)
{
    return now() - spun;
}

/* Ends the metric: what must come does not. */
static _Noreturn void lost(const char *what)
{
    not_available(what, ETIMEDOUT);
}

static void write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY);
    if (fd >= 0) {
        if (write(fd, text, strlen(text)) < 0)
            not_available(path, errno);
        close(fd);
    }
}

struct card {
    int index;
    uint8_t hardware[6];
};

/* Sets a card up; with an address if that is given. */
static struct card card(const char *name, const char *address)
{
    struct card card;
    struct ifreq request = {0};
    strcpy(request.ifr_name, name);
    const int fd = (int)CHECK(socket(AF_INET, SOCK_DGRAM, 0));
    CHECK(ioctl(fd, SIOCGIFINDEX, &request));
    card.index = request.ifr_ifindex;
    CHECK(ioctl(fd, SIOCGIFHWADDR, &request));
    memcpy(card.hardware, request.ifr_hwaddr.sa_data, 6);
    if (address) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        inet_pton(AF_INET, address, &in.sin_addr);
        memcpy(&request.ifr_addr, &in, sizeof in);
        CHECK(ioctl(fd, SIOCSIFADDR, &request));
        inet_pton(AF_INET, "255.255.255.0", &in.sin_addr);
        memcpy(&request.ifr_netmask, &in, sizeof in);
        CHECK(ioctl(fd, SIOCSIFNETMASK, &request));
    }
    CHECK(ioctl(fd, SIOCGIFFLAGS, &request));
    request.ifr_flags |= IFF_UP;
    CHECK(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
    return card;
}

/* Says which hardware address a neighbour has. */
static void neighbour(int index, const char *address, const uint8_t hardware[6])
{
    struct {
        struct nlmsghdr header;
        struct ndmsg message;
        struct rtattr to;
        struct in_addr address;
        struct rtattr at;
        uint8_t hardware[8];
    } request = {
        .header = {.nlmsg_len = sizeof request - 2,
                   .nlmsg_type = RTM_NEWNEIGH,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE},
        .message = {.ndm_family = AF_INET, .ndm_ifindex = index, .ndm_state = NUD_PERMANENT},
        .to = {.rta_len = RTA_LENGTH(4), .rta_type = NDA_DST},
        .at = {.rta_len = RTA_LENGTH(6), .rta_type = NDA_LLADDR},
    };
    inet_pton(AF_INET, address, &request.address);
    memcpy(request.hardware, hardware, 6);
    const int fd = (int)CHECK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    CHECK(send(fd, &request, request.header.nlmsg_len, 0));
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        uint8_t rest[512];
    } answer;
    CHECK(recv(fd, &answer, sizeof answer, 0));
    if (answer.error.error != 0)
        not_available("RTM_NEWNEIGH", -answer.error.error);
    close(fd);
}

static int packet_socket(int index, int protocol)
{
    const int fd = (int)CHECK(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons((uint16_t)protocol)));
    const struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons((uint16_t)protocol), .sll_ifindex = index};
    CHECK(bind(fd, (const struct sockaddr *)&at, sizeof at));
    return fd;
}

static const uint8_t NOBODY[6] = {2, 0, 0, 0, 0, 0x99};
static struct card own, far; /* eth0, eth1 */
static int wire;             /* a packet socket at eth1 */
static int abyss;            /* one at eth2, where what is sent to nobody is lost in the emulator */
static int service;          /* the port of this metric's listener: what an earlier one has left waiting is none of its */

/* Sets the card of the emulator's own network up. */
static struct card set_up_outer(void)
{
    load_modules();
    write_file("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    const struct card outer = card("eth2", "10.0.2.15");
    neighbour(outer.index, ABYSS, NOBODY);
    return outer;
}

/* Which hardware address the peer has: eth1's, or one that nobody has. */
static void peer_is(const uint8_t hardware[6])
{
    for (int n = 0; n < PEER_ADDRESSES; n++) {
        const struct in_addr address = {.s_addr = htonl(PEER_ADDRESS + (uint32_t)n)};
        neighbour(own.index, inet_ntoa(address), hardware);
    }
}

/* Sets all cards up. */
static void set_up(void)
{
    abyss = packet_socket(set_up_outer().index, 0);
    own = card("eth0", OWN);
    far = card("eth1", NULL);
    peer_is(far.hardware);
    wire = packet_socket(far.index, ETH_P_IP);
    spin(CARRIED);
}

static uint32_t add(uint32_t sum, const void *data, size_t length)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i + 1 < length; i += 2)
        sum += (uint32_t)(bytes[i] << 8 | bytes[i + 1]);
    return length % 2 ? sum + (uint32_t)(bytes[length - 1] << 8) : sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

struct frame {
    size_t length;
    uint8_t bytes[ETHERNET + MTU];
};

static void put(uint8_t *at, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A packet of one of the peer's addresses around what stands behind the headers of Ethernet and IP already. */
static void finish(struct frame *frame, const uint8_t to[6], uint32_t from, int protocol, size_t payload)
{
    uint8_t *ip = frame->bytes + ETHERNET, *above = ip + IP;
    memcpy(frame->bytes, to, 6);
    memcpy(frame->bytes + 6, NOBODY, 6);
    put(frame->bytes + 12, ETH_P_IP, 2);
    memset(ip, 0, IP);
    put(ip, 0x4500, 2);
    put(ip + 2, (uint32_t)(IP + payload), 2);
    put(ip + 6, 0x4000, 2);
    ip[8] = 64;
    ip[9] = (uint8_t)protocol;
    put(ip + 12, from, 4);
    inet_pton(AF_INET, OWN, ip + 16);
    const uint16_t head = fold(add(0, ip, IP));
    memcpy(ip + 10, &head, 2);
    uint8_t *sum = above + (protocol == IPPROTO_TCP ? 16 : 6);
    put(sum, 0, 2);
    const uint16_t whole = fold(add(add((uint32_t)protocol + (uint32_t)payload, ip + 12, 8), above, payload));
    memcpy(sum, &whole, 2);
    frame->length = ETHERNET + IP + payload;
}

static void datagram(struct frame *frame, const uint8_t to[6], size_t data)
{
    uint8_t *udp = frame->bytes + ETHERNET + IP;
    put(udp, 9, 2);
    put(udp + 2, 7, 2);
    put(udp + 4, (uint32_t)(UDP + data), 2);
    memset(udp + UDP, 'x', data);
    finish(frame, to, PEER_ADDRESS, IPPROTO_UDP, UDP + data);
}

enum { FIN = 1, SYN = 2, ACK = 16 };

/* A segment of the peer's connection with a number. */
static void segment(struct frame *frame, int number, uint32_t seq, uint32_t ack, int flags, size_t data)
{
    uint8_t *tcp = frame->bytes + ETHERNET + IP;
    memset(tcp, 0, TCP);
    put(tcp, (uint32_t)(FIRST_PORT + number % PORTS), 2);
    put(tcp + 2, (uint32_t)service, 2);
    put(tcp + 4, seq, 4);
    put(tcp + 8, ack, 4);
    put(tcp + 12, (uint32_t)(0x5000 | flags), 2);
    put(tcp + 14, 0xffff, 2);
    memset(tcp + TCP, 'x', data);
    finish(frame, own.hardware, (uint32_t)(PEER_ADDRESS + number / PORTS), IPPROTO_TCP, TCP + data);
}

/* Sends a frame by a packet socket. */
static void send_frame(int socket, const struct frame *frame)
{
    CHECK(send(socket, frame->bytes, frame->length, 0));
}

/* Puts a frame on the wire. */
static void inject(const struct frame *frame) { send_frame(wire, frame); }

/* A socket that sends datagrams to an address. */
static int sender(const char *address)
{
    const int fd = (int)CHECK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, address, &to.sin_addr);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

/* What is done for the peer, by its calls, each in instructions. */
static struct {
    double injected, looked, taken;
} own_part;
static uint64_t injected, looked, taken;

/* A frame from the wire; false if there is none. */
static int take(struct frame *frame)
{
    const ssize_t length = recv(wire, frame->bytes, sizeof frame->bytes, 0);
    if (length < 0) {
        looked++;
        return 0;
    }
    frame->length = (size_t)length;
    taken++;
    return 1;
}

/* A frame from the wire that must come. */
static void take_one(struct frame *frame, const char *what)
{
    for (int n = 0; !take(frame); n++) {
        if (n > PATIENCE)
            lost(what);
        spin(SOON);
    }
}

/* Measures what is done for the peer, with frames as long as these. */
static void calibrate(size_t data)
{
    struct frame frame;
    enum { TIMES = 8 * BURST };
    datagram(&frame, NOBODY, data);
    for (int warm = 0; warm < 2; warm++) {
        uint64_t start = worked();
        for (int n = 0; n < TIMES; n++) {
            send_frame(abyss, &frame);
            if (n % BURST == BURST - 1)
                spin(CARRIED);
        }
        own_part.injected = (double)(worked() - start) / TIMES;
        struct frame late; /* what an earlier metric's connections still say */
        while (take(&late))
            spin(SOON);
        start = worked();
        for (int n = 0; n < TIMES; n++)
            if (take(&frame))
                lost("an empty wire");
        own_part.looked = (double)(worked() - start) / TIMES;
    }
    /* A datagram that is taken, less one that is lost. */
    const int to[2] = {sender(ABYSS), sender(PEER)};
    double sent[2] = {0};
    looked = 0;
    for (int warm = 0; warm < 2; warm++)
        for (int is_taken = 0; is_taken < 2; is_taken++) {
            const uint64_t start = worked();
            for (int n = 0; n < TIMES; n++) {
                CHECK(send(to[is_taken], frame.bytes, data, 0));
                if (n % BURST == BURST - 1) {
                    spin(CARRIED);
                    struct frame other;
                    for (int m = 0; is_taken && m < BURST; m++)
                        take_one(&other, "a datagram to the peer");
                }
            }
            sent[is_taken] = ((double)(worked() - start) - own_part.looked * (double)looked) / TIMES;
            looked = 0;
        }
    own_part.taken = sent[1] - sent[0];
    close(to[0]);
    close(to[1]);
    injected = looked = taken = 0;
}

/* Instructions since a moment, without the peer's part. */
static uint64_t elapsed(uint64_t start)
{
    const double peer =
        own_part.injected * (double)injected + own_part.looked * (double)looked + own_part.taken * (double)taken;
    injected = looked = taken = 0;
    const double all = (double)(worked() - start) - peer;
    return all > 0 ? (uint64_t)all : 0;
}

/* A frame as long as they are, by a packet socket: what the driver takes to send it, and the call. */
static void frame_send(void)
{
    abyss = packet_socket(set_up_outer().index, 0);
    struct frame frame;
    datagram(&frame, NOBODY, MTU - IP - UDP);
    MEASURE_BATCHES(8 * BURST, {
        const uint64_t start = worked();
        for (int n = 0; n < 8 * BURST; n++) {
            send_frame(abyss, &frame);
            if (n % BURST == BURST - 1)
                spin(CARRIED);
        }
        timing_end(&timing, elapsed(start));
    })
}

/* A datagram that leaves by a card, and is lost there. */
static void datagrams_out(size_t data)
{
    set_up_outer();
    static uint8_t bytes[MTU];
    const int fd = sender(ABYSS);
    MEASURE_BATCHES(8 * BURST, {
        const uint64_t start = worked();
        for (int n = 0; n < 8 * BURST; n++) {
            CHECK(send(fd, bytes, data, 0));
            if (n % BURST == BURST - 1)
                spin(CARRIED);
        }
        timing_end(&timing, elapsed(start));
    })
}

static void udp_send(void) { datagrams_out(MTU - IP - UDP); }
static void udp_send_64(void) { datagrams_out(64); }

/* A datagram that comes in by a card, until it is in the program's memory. */
static void datagrams_in(size_t data)
{
    set_up();
    calibrate(data);
    static uint8_t bytes[MTU];
    const int fd = (int)CHECK(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    const struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(7)};
    CHECK(bind(fd, (const struct sockaddr *)&here, sizeof here));
    struct frame frame;
    datagram(&frame, own.hardware, data);
    MEASURE_BATCHES(8 * BURST, {
        const uint64_t start = worked();
        for (int n = 0; n < 8; n++) {
            for (int m = 0; m < BURST; m++, injected++)
                inject(&frame);
            spin(CARRIED);
            for (int m = 0, tries = 0; m < BURST;) {
                if (recv(fd, bytes, sizeof bytes, 0) == (ssize_t)data) {
                    m++;
                } else if (++tries > PATIENCE) {
                    lost("a datagram");
                } else {
                    looked++; /* very nearly as much as to look at the wire */
                    spin(SOON);
                }
            }
        }
        timing_end(&timing, elapsed(start));
    })
}

static void udp_receive(void) { datagrams_in(MTU - IP - UDP); }
static void udp_receive_64(void) { datagrams_in(64); }

static int listener(void)
{
    const int fd = (int)CHECK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), yes = 1;
    service = 1024 + getpid();
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    ioctl(fd, SIOCSIFFLAGS, &lo); /* where the system has not done it */
    const struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)service)};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
    CHECK(bind(fd, (const struct sockaddr *)&here, sizeof here));
    CHECK(listen(fd, 4096));
    return fd;
}

/* The next segment to the peer that has all these flags, from the wire: for which of its connections, and its sequence number. */
static int wait_for(int flags, uint32_t *seq)
{
    struct frame frame;
    for (int n = 0; n < PATIENCE; n++) {
        take_one(&frame, "a segment to the peer");
        const uint8_t *tcp = frame.bytes + ETHERNET + IP;
        if (frame.length >= ETHERNET + IP + TCP && (tcp[0] << 8 | tcp[1]) == service && (tcp[13] & flags) == flags) {
            *seq = get32(tcp + 4);
            const int address = (int)(get32(tcp - 4) - PEER_ADDRESS);
            return address * PORTS + (tcp[2] << 8 | tcp[3]) - FIRST_PORT;
        }
    }
    lost("a segment to the peer");
}

/* A connection that has come. */
static int accept_one(int listener)
{
    for (int n = 0; n < PATIENCE; n++) {
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd >= 0)
            return fd;
        looked++; /* very nearly as much as to look at the wire */
        spin(SOON);
    }
    lost("a connection");
}

/* The peer opens so many connections, from this one on, and what it expects next is in `next`. */
static void open_connections(int first, int count, uint32_t *next)
{
    struct frame frame;
    for (int n = 0; n < count; n++) {
        segment(&frame, first + n, 1000, 0, SYN, 0);
        inject(&frame);
    }
    for (int n = 0; n < count; n++) {
        uint32_t seq;
        const int to = wait_for(SYN | ACK, &seq);
        if (to < first || to >= first + count)
            lost("an answer to a SYN");
        next[to - first] = seq + 1;
        segment(&frame, to, 1001, seq + 1, ACK, 0);
        inject(&frame);
    }
    injected += 2 * (uint64_t)count;
}

/* A connection that is accepted and closed: SYN, ACK and FIN from a card, and what answers them. */
static void tcp_accept(void)
{
    enum { TIMES = 2 * BURST };
    set_up();
    calibrate(64);
    const int from = listener();
    int first = 0;
    MEASURE_BATCHES(TIMES, {
        const uint64_t start = worked();
        for (int n = 0; n < TIMES; n += BURST, first += BURST) {
            uint32_t next[BURST];
            struct frame frame;
            open_connections(first, BURST, next);
            for (int m = 0; m < BURST; m++)
                CHECK(close(accept_one(from)));
            for (int m = 0; m < BURST; m++, injected++) {
                uint32_t seq;
                const int to = wait_for(FIN, &seq);
                segment(&frame, to, 1001, seq + 1, FIN | ACK, 0);
                inject(&frame);
            }
            spin(CARRIED);
        }
        timing_end(&timing, elapsed(start));
    })
}

static int connected(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    const int fd = (int)CHECK(socket(AF_INET, SOCK_STREAM, 0));
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to));
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK));
    return fd;
}

/* Bytes through a connection of the emulator's own network, 64 KiB an operation. */
static void stream(const char *address, int port, ssize_t (*move)(int, void *, size_t))
{
    enum { OPERATION = 65536, TIMES = 32 };
    static uint8_t bytes[OPERATION];
    set_up_outer();
    const int fd = connected(address, port);
    MEASURE_BATCHES(TIMES, {
        const uint64_t start = worked();
        for (int n = 0; n < TIMES; n++)
            for (size_t done = 0, tries = 0; done < OPERATION;) {
                const ssize_t moved = move(fd, bytes, OPERATION - done);
                if (moved > 0) {
                    done += (size_t)moved;
                } else if (moved == 0 || errno != EAGAIN || ++tries > PATIENCE) {
                    lost("bytes");
                } else {
                    spin(CARRIED); /* so long that looking costs next to nothing */
                }
            }
        timing_end(&timing, elapsed(start));
    })
}

static ssize_t write_to(int fd, void *bytes, size_t length) { return write(fd, bytes, length); }
static void tcp_send(void) { stream("10.0.2.100", 9, write_to); }
static void tcp_receive(void) { stream("10.0.2.101", 19, read); }

/* With the cards set up: connections of the peer's, all of which this program has accepted, with what the peer expects of each. */
static uint32_t *open_many(int count)
{
    const rlim_t most = (rlim_t)count + 100;
    const struct rlimit files = {.rlim_cur = most, .rlim_max = most};
    CHECK(setrlimit(RLIMIT_NOFILE, &files));
    uint32_t *next = calloc((size_t)count, sizeof *next);
    if (!next)
        not_available("calloc", ENOMEM);
    const int from = listener();
    for (int n = 0; n < count; n += BURST) {
        const int some = count - n < BURST ? count - n : BURST;
        open_connections(n, some, next + n);
        for (int m = 0; m < some; m++)
            accept_one(from);
    }
    return next;
}

/* A segment with so many bytes for any of so many connections, until it is acknowledged or will be; without bytes there is nothing
   to acknowledge. */
static void segments(int count, size_t data)
{
    enum { TIMES = 8 * BURST };
    set_up();
    calibrate(64);
    uint32_t *next = open_many(count), *sent = calloc((size_t)count, sizeof *sent), chance = 1;
    if (!sent)
        not_available("calloc", ENOMEM);
    peer_is(NOBODY);
    close(wire);
    wire = packet_socket(far.index, 0);
    static struct frame frames[BURST];
    MEASURE_BATCHES(TIMES, {
        uint64_t whole = 0;
        for (int n = 0; n < TIMES / BURST; n++) {
            for (int m = 0; m < BURST; m++) {
                chance = chance * 1664525 + 1013904223;
                const int which = (int)((chance >> 8) % (uint32_t)count);
                segment(&frames[m], which, 1001 + sent[which], next[which], ACK, data);
                sent[which] += (uint32_t)data;
            }
            const uint64_t start = worked();
            for (int m = 0; m < BURST; m++, injected++)
                inject(&frames[m]);
            spin(CARRIED);
            whole += elapsed(start);
        }
        timing_end(&timing, whole);
    })
}

static void segments_10(void) { segments(10, 1); }
static void segments_1000(void) { segments(1000, 1); }
static void segments_10000(void) { segments(10000, 1); }
static void segments_100000(void) { segments(100000, 1); }
static void quiet_10(void) { segments(10, 0); }
static void quiet_1000(void) { segments(1000, 0); }
static void quiet_100000(void) { segments(100000, 0); }

static uint64_t free_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    unsigned long kib = 0;
    char line[128];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemFree: %lu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    if (!kib)
        not_available("/proc/meminfo", ENOENT);
    return kib * 1024;
}

/* Bytes of memory that each of 10,000 established connections takes, with the program's descriptor. */
static void connection_bytes(void)
{
    enum { COUNT = 10000 };
    set_up();
    calibrate(64);
    const uint64_t before = free_memory();
    open_many(COUNT);
    const uint64_t after = free_memory();
    MEASURE_BATCHES(COUNT, timing_end(&timing, before - after);)
}

/* Ten seconds in which 10,000 established connections do nothing. The plugin counts how often the processor is woken. */
static void idle(void)
{
    const struct timespec second = {.tv_sec = 1}, ten = {.tv_sec = 10};
    set_up();
    open_many(10000);
    CHECK(nanosleep(&second, NULL)); /* what is acknowledged late, or looked for */
    MARK_START();
    CHECK(nanosleep(&ten, NULL));
    MARK_STOP();
    printf("bench: net-idle-10000 0 0 0 1\n");
}

/*
 * Requests to a server, of clients of the host's: all that the processor executes for them, the server and what is between two
 * requests included, but not how long it sleeps for want of any. The plugin counts that; the clock does not know it.
 */
static void served(const char *name, const char *command, int port)
{
    enum { CONNECTIONS = 8, ROUNDS = 50 };
    set_up_outer();
    close(listener()); /* the loop is up, by which it is seen that the server is there */
    char line[512], answer[8];
    snprintf(line, sizeof line, "%s > /dev/null & until { : < /dev/tcp/127.0.0.1/%d; } 2> /dev/null; do :; done", command, port);
    prepare(line);
    const int clients = connected("10.0.2.102", 7);
    CHECK(fcntl(clients, F_SETFL, 0));
    const int length = snprintf(line, sizeof line, "%s %d %d\n", name, CONNECTIONS, ROUNDS);
    MEASURE_BATCHES(CONNECTIONS * ROUNDS, {
        CHECK(write(clients, line, (size_t)length));
        if (CHECK(read(clients, answer, sizeof answer)) != 5)
            lost("the clients' end");
        timing_end(&timing, 1);
    })
}

static void nginx(void)
{
    prepare("mkdir -p /tmp/www /var/log/nginx && head -c 612 /dev/zero | tr '\\0' x > /tmp/www/index.html && "
            "echo 'user root; daemon off; events {} http { root /tmp/www; sendfile on; server { listen 80; } }' > /tmp/nginx.conf");
    served("http", "nginx -c /tmp/nginx.conf", 80);
}

static void redis(void)
{
    served("redis", "redis-server --protected-mode no --save ''", 6379);
}

/* A connection over the loop that is made, accepted and closed at both ends. */
static void loop_accept(void)
{
    const int from = listener();
    MEASURE(const int fd = connected("127.0.0.1", service); const int peer = accept4(from, NULL, NULL, 0); RESULT(peer);
            RESULT(close(fd)); RESULT(close(peer)))
}

const struct metric net_metrics[] = {
    {"net-loop-accept", loop_accept},
    {"net-frame-send", frame_send},
    {"net-udp-send", udp_send},
    {"net-udp-send-64", udp_send_64},
    {"net-udp-receive", udp_receive},
    {"net-udp-receive-64", udp_receive_64},
    {"net-tcp-send", tcp_send},
    {"net-tcp-receive", tcp_receive},
    {"net-tcp-accept", tcp_accept},
    {"net-segment-10", segments_10},
    {"net-segment-1000", segments_1000},
    {"net-segment-10000", segments_10000},
    {"net-nginx", nginx},
    {"net-redis", redis},
    {"segment-100000", segments_100000},
    {"quiet-segment-10", quiet_10},
    {"quiet-segment-1000", quiet_1000},
    {"quiet-segment-100000", quiet_100000},
    {"net-connection-bytes", connection_bytes},
    {"net-idle-10000", idle},
    {0},
};
