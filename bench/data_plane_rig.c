/* The two ends of bench/data_plane.py: an engine that costs next to nothing, and who asks it.
 *
 *     rig backend PORT
 *     rig load key=value ...      prints one line of JSON
 *
 * One thread and one epoll each, loopback only. What is wanted of an answer stands in the prompt
 * ("chunks=200 pause_us=20000 think_us=0"), where no gateway changes it. Answers to different
 * prompts have different lengths, as a model's have: a predictor that saw one length only would be
 * idle. Every event of a stream is a send of its own, in an HTTP chunk of its own; each content
 * holds the microsecond at which it was sent, so that its way through a gateway can be timed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, READ_BYTES = 262144, MAX_HEAD = 16384 };
enum { ADDRESSES = 8 }; /* From 127.0.0.1 on: to a gateway each is a backend. */

static int epoll_fd;
static char piece[READ_BYTES];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void watch(int fd, int operation, uint32_t events, void *whom) {
    struct epoll_event event = {.events = events, .data.ptr = whom};
    if (epoll_ctl(epoll_fd, operation, fd, &event) < 0) fail("epoll_ctl");
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int wait_for_events(struct epoll_event *events, int64_t until_us) {
    int64_t left_us = until_us - now_us();
    if (left_us < 0) left_us = 0;
    struct timespec span = {left_us / 1000000, left_us % 1000000 * 1000};
    int count = epoll_pwait2(epoll_fd, events, MAX_EVENTS, &span, NULL);
    return count < 0 ? 0 : count;
}

/* A number behind a name, wherever it stands. */
static long number_in(const char *text, size_t length, const char *name, long otherwise) {
    const char *found = memmem(text, length, name, strlen(name));
    return found ? atol(found + strlen(name)) : otherwise;
}

static int says(const char *text, size_t length, const char *what) {
    return memmem(text, length, what, strlen(what)) != NULL;
}

/* ------------------------------------------------------------------ backend */

typedef struct engine_call {
    int fd, is_streaming, wants_usage, is_dead;
    char *in;
    size_t in_bytes, in_room;
    char *out; /* what the socket did not take */
    size_t out_bytes, out_room;
    long chunks, sent, pause_us, tokens;
    int64_t due_us; /* 0: nothing to do */
    struct engine_call *previous, *next; /* among those with something to do */
} engine_call;

static engine_call busy = {.previous = &busy, .next = &busy};
static engine_call *graveyard[MAX_EVENTS * 2];
static int graves;

static void rest(engine_call *call) {
    if (!call->due_us) return;
    call->due_us = 0;
    call->previous->next = call->next;
    call->next->previous = call->previous;
}

static void work_at(engine_call *call, int64_t due_us) {
    if (!call->due_us) {
        call->next = busy.next;
        call->previous = &busy;
        busy.next->previous = call;
        busy.next = call;
    }
    call->due_us = due_us;
}

static void hang_up(engine_call *call) {
    if (call->is_dead) return;
    rest(call);
    call->is_dead = 1;
    close(call->fd);
    if (graves < MAX_EVENTS * 2) graveyard[graves++] = call;
}

static void bury(void) {
    while (graves) {
        engine_call *call = graveyard[--graves];
        free(call->in);
        free(call->out);
        free(call);
    }
}

static void put(engine_call *call, const char *bytes, size_t count) {
    if (call->is_dead) return;
    if (!call->out_bytes) {
        ssize_t taken = send(call->fd, bytes, count, MSG_NOSIGNAL);
        if (taken < 0 && errno != EAGAIN) {
            hang_up(call);
            return;
        }
        if (taken > 0) bytes += taken, count -= (size_t)taken;
        if (!count) return;
        watch(call->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT, call);
    }
    if (call->out_bytes + count > call->out_room) {
        call->out_room = (call->out_bytes + count) * 2;
        call->out = realloc(call->out, call->out_room);
    }
    memcpy(call->out + call->out_bytes, bytes, count);
    call->out_bytes += count;
}

static void put_rest(engine_call *call) {
    ssize_t taken = send(call->fd, call->out, call->out_bytes, MSG_NOSIGNAL);
    if (taken <= 0) return;
    call->out_bytes -= (size_t)taken;
    memmove(call->out, call->out + taken, call->out_bytes);
    if (!call->out_bytes) watch(call->fd, EPOLL_CTL_MOD, EPOLLIN, call);
}

static void put_whole(engine_call *call, const char *type, const char *body) {
    char answer[4096];
    int length = snprintf(answer, sizeof answer,
                          "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                          "content-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                          type, strlen(body), body);
    put(call, answer, (size_t)length);
}

static void put_completion(engine_call *call) {
    static char text[701];
    char body[2048];
    memset(text, 'x', 700);
    snprintf(body, sizeof body,
             "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1750000000,"
             "\"model\":\"rig\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":\"%s\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,"
             "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":256,"
             "\"total_tokens\":%ld,\"completion_tokens\":%ld,\"prompt_tokens_details\":null},"
             "\"prompt_logprobs\":null}",
             text, 256 + call->tokens, call->tokens);
    put_whole(call, "application/json", body);
}

static void put_event(engine_call *call, const char *choices, const char *more) {
    char data[512], chunk[600];
    int length = snprintf(data, sizeof data,
                          "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
                          "\"created\":1750000000,\"model\":\"rig\",\"choices\":[%s]%s}\n\n",
                          choices, more);
    length = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", length, data);
    put(call, chunk, (size_t)length);
}

static void put_content(engine_call *call) {
    char choice[160];
    snprintf(choice, sizeof choice,
             "{\"index\":0,\"delta\":{\"content\":\"@%016lld \"},\"logprobs\":null,"
             "\"finish_reason\":null}",
             (long long)now_us());
    put_event(call, choice, "");
}

static void end_stream(engine_call *call) {
    put_event(call, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}", "");
    if (call->wants_usage) {
        char usage[120];
        snprintf(usage, sizeof usage,
                 ",\"usage\":{\"prompt_tokens\":256,\"total_tokens\":%ld,\"completion_tokens\":%ld}",
                 256 + call->tokens, call->tokens);
        put_event(call, "", usage);
    }
    static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    put(call, end, sizeof end - 1);
    rest(call);
}

static void do_what_is_due(engine_call *call, int64_t now) {
    if (!call->is_streaming) {
        put_completion(call);
        rest(call);
        return;
    }
    if (!call->sent) {
        static const char head[] =
            "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
            "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        put(call, head, sizeof head - 1);
        put_event(call,
                  "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}",
                  "");
    }
    put_content(call);
    if (++call->sent >= call->chunks)
        end_stream(call);
    else if (!call->is_dead)
        call->due_us = call->pause_us ? call->due_us + call->pause_us : now;
}

static void begin_completion(engine_call *call, const char *body, size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)body[i]) * 16777619u;
    call->chunks = number_in(body, length, " chunks=", 16);
    call->pause_us = number_in(body, length, " pause_us=", 0);
    call->is_streaming = says(body, length, "\"stream\":true");
    call->wants_usage = says(body, length, "\"include_usage\":true");
    call->tokens = call->is_streaming ? call->chunks : 16L << hash % 7;
    call->sent = 0;
    int64_t now = now_us();
    work_at(call, now + number_in(body, length, " think_us=", 0));
    if (call->due_us <= now) do_what_is_due(call, now);
}

static void answer(engine_call *call, const char *head, const char *body, size_t length) {
    if (!strncmp(head, "POST /v1/chat/completions", 25))
        begin_completion(call, body, length);
    else if (!strncmp(head, "GET /v1/models", 14))
        put_whole(call, "application/json",
                  "{\"object\":\"list\",\"data\":[{\"id\":\"rig\",\"object\":\"model\","
                  "\"created\":1750000000,\"owned_by\":\"vllm\",\"root\":\"rig\",\"parent\":null,"
                  "\"max_model_len\":8192}]}");
    else if (!strncmp(head, "GET /metrics", 12))
        put_whole(call, "text/plain; version=0.0.4",
                  "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n");
    else if (strstr(head, "_info "))
        put_whole(call, "application/json",
                  "{\"model_path\":\"rig\",\"tokenizer_path\":\"rig\",\"served_model_name\":\"rig\","
                  "\"is_generation\":true,\"dp_size\":1,\"tp_size\":1,\"version\":\"0.5.0\"}");
    else if (!strncmp(head, "GET /health", 11))
        put_whole(call, "text/plain", "");
    else
        put(call, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 45);
}

/* Take one request from what has come; 0: there is no whole one. */
static int take_request(engine_call *call) {
    char *end = call->in_bytes ? memmem(call->in, call->in_bytes, "\r\n\r\n", 4) : NULL;
    if (!end || call->due_us || call->is_dead) return 0;
    size_t head_bytes = (size_t)(end + 4 - call->in), body_bytes = 0, skipped = 0;
    *end = 0;
    char *length = strcasestr(call->in, "\ncontent-length:");
    if (length) body_bytes = strtoul(length + 16, NULL, 10);
    if (strcasestr(call->in, "\ntransfer-encoding:")) {
        /* One chunk of body is all that anybody here sends that way. */
        char *line = call->in + head_bytes;
        char *line_end = memmem(line, call->in_bytes - head_bytes, "\r\n", 2);
        if (!line_end || !says(line_end, (size_t)(call->in + call->in_bytes - line_end), "\r\n0\r\n\r\n")) {
            *end = '\r';
            return 0;
        }
        body_bytes = strtoul(line, NULL, 16);
        skipped = (size_t)(line_end + 2 - line);
    }
    size_t total = head_bytes + skipped + body_bytes + (skipped ? 7 : 0);
    if (call->in_bytes < total) {
        *end = '\r';
        return 0;
    }
    answer(call, call->in, call->in + head_bytes + skipped, body_bytes);
    if (call->is_dead) return 0;
    call->in_bytes -= total;
    memmove(call->in, call->in + total, call->in_bytes);
    return 1;
}

static void take_bytes(engine_call *call) {
    ssize_t count = recv(call->fd, piece, sizeof piece, 0);
    if (count <= 0) {
        if (!(count < 0 && errno == EAGAIN)) hang_up(call);
        return;
    }
    if (call->in_bytes + (size_t)count + 1 > call->in_room) {
        call->in_room = (call->in_bytes + (size_t)count + 1) * 2;
        call->in = realloc(call->in, call->in_room);
    }
    memcpy(call->in + call->in_bytes, piece, (size_t)count);
    call->in_bytes += (size_t)count;
    while (take_request(call)) {
    }
}

static void take_connections(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        engine_call *call = calloc(1, sizeof *call);
        call->fd = fd;
        watch(fd, EPOLL_CTL_ADD, EPOLLIN, call);
    }
}

static int listen_at(uint32_t host, int port) {
    struct sockaddr_in address = loopback(port);
    address.sin_addr.s_addr = htonl(host);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    if (listen(listener, 4096) < 0) fail("listen");
    watch(listener, EPOLL_CTL_ADD, EPOLLIN, NULL);
    return listener;
}

static void run_backend(int port) {
    int listeners[ADDRESSES];
    for (int i = 0; i < ADDRESSES; i++) listeners[i] = listen_at(INADDR_LOOPBACK + i, port);
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int64_t until = now_us() + 1000000;
        for (engine_call *call = busy.next; call != &busy; call = call->next)
            if (call->due_us < until) until = call->due_us;
        int count = wait_for_events(events, until);
        for (int i = 0; i < count; i++) {
            engine_call *call = events[i].data.ptr;
            if (!call) {
                for (int k = 0; k < ADDRESSES; k++) take_connections(listeners[k]);
                continue;
            }
            if (!call->is_dead && events[i].events & EPOLLOUT) put_rest(call);
            if (!call->is_dead && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_bytes(call);
        }
        int64_t now = now_us();
        for (engine_call *call = busy.next, *next; call != &busy; call = next) {
            next = call->next;
            if (call->due_us > now) continue;
            do_what_is_due(call, now);
            if (!call->is_dead && !call->due_us)
                while (take_request(call)) {
                }
        }
        bury();
    }
}

/* --------------------------------------------------------------------- load */

typedef struct {
    int fd, is_connecting, is_busy, wants_out, status, is_chunked, has_length, in_line, ends_after;
    char head[MAX_HEAD];
    size_t head_bytes, left;
    char line[32];
    char *request;
    size_t request_bytes, sent_bytes;
    long marks;
    int digits, done_letters, is_done;
    int64_t stamp_us, began_us, first_us;
    enum { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, TO_THE_END } state;
} client;

static struct {
    long port, requests, connections, stream, chunks, pause_us, think_us, prompt_bytes, prompts;
    long first_prompt, stagger_us, for_ms;
    const char *headers;
} asked = {.requests = 100, .connections = 1, .chunks = 1, .prompt_bytes = 1024, .prompts = 64,
           .for_ms = 60000, .headers = ""};
static long begun, ended, good, bad;
static double *latency_ms, *first_ms, *way_ms;
static long latencies, firsts, ways;
static char first_mistake[240];
static struct sockaddr_in target;

static void wants(client *c, int out) {
    if (c->wants_out == out) return;
    c->wants_out = out;
    watch(c->fd, EPOLL_CTL_MOD, EPOLLIN | (out ? EPOLLOUT : 0), c);
}

static void connect_client(client *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->is_connecting = c->wants_out = 1;
    if (connect(c->fd, (struct sockaddr *)&target, sizeof target) < 0 && errno != EINPROGRESS)
        fail("connect");
    watch(c->fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT, c);
}

static void write_request(client *c) {
    static const char *words = "every token goes to the client that asked for it and no copy stays ";
    size_t room = (size_t)asked.prompt_bytes + strlen(asked.headers) + 1024, used = strlen(words);
    char *prompt = malloc((size_t)asked.prompt_bytes + 256), *body = malloc(room);
    int length = sprintf(prompt, "question %ld: chunks=%ld pause_us=%ld think_us=%ld ",
                         asked.first_prompt + begun % asked.prompts, asked.chunks, asked.pause_us,
                         asked.think_us);
    for (; length < asked.prompt_bytes; length++) prompt[length] = words[(size_t)length % used];
    prompt[length] = 0;
    int bytes = sprintf(body,
                        "{\"model\":\"rig\",\"messages\":[{\"role\":\"system\",\"content\":\"You are "
                        "a helpful assistant.\"},{\"role\":\"user\",\"content\":\"%s\"}],"
                        "\"temperature\":0.7,\"max_tokens\":2048%s}",
                        prompt, asked.stream ? ",\"stream\":true" : "");
    if (!c->request) c->request = malloc(room + 1024);
    c->request_bytes = (size_t)sprintf(
        c->request,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%ld\r\ncontent-type: "
        "application/json\r\naccept: */*\r\nuser-agent: rig\r\nauthorization: Bearer sk-rig\r\n%s"
        "content-length: %d\r\n\r\n%s",
        asked.port, asked.headers, bytes, body);
    free(prompt);
    free(body);
}

static void send_request(client *c) {
    while (c->sent_bytes < c->request_bytes) {
        ssize_t taken = send(c->fd, c->request + c->sent_bytes, c->request_bytes - c->sent_bytes,
                             MSG_NOSIGNAL);
        if (taken < 0) break;
        c->sent_bytes += (size_t)taken;
    }
    wants(c, c->sent_bytes < c->request_bytes);
}

static void begin(client *c) {
    if (begun >= asked.requests) return;
    write_request(c);
    begun++;
    c->is_busy = 1;
    c->sent_bytes = c->head_bytes = 0;
    c->state = HEAD;
    c->marks = c->is_done = c->done_letters = c->status = c->ends_after = 0;
    c->digits = -1;
    c->first_us = 0;
    c->began_us = now_us();
    if (!c->is_connecting) send_request(c);
}

static void end(client *c, const char *mistake) {
    int64_t now = now_us();
    if (!mistake && c->status != 200) mistake = "the status is not 200";
    if (!mistake && asked.stream && (c->marks != asked.chunks || !c->is_done))
        mistake = "the stream is not complete";
    ended++;
    if (mistake) {
        bad++;
        if (!first_mistake[0])
            snprintf(first_mistake, sizeof first_mistake, "%s (status %d, %ld chunks)", mistake,
                     c->status, c->marks);
    } else {
        good++;
        latency_ms[latencies++] = (double)(now - c->began_us) / 1e3;
        if (asked.stream) first_ms[firsts++] = (double)(c->first_us - c->began_us) / 1e3;
    }
    c->is_busy = 0;
    if (mistake || c->ends_after) {
        close(c->fd);
        connect_client(c);
    }
    begin(c);
}

static void read_body(client *c, const char *bytes, size_t count, int64_t now) {
    static const char done[] = "[DONE]";
    for (size_t i = 0; i < count && asked.stream; i++) {
        char byte = bytes[i];
        if (c->digits >= 0) {
            c->stamp_us = c->stamp_us * 10 + (byte - '0');
            if (++c->digits < 16) continue;
            c->digits = -1;
            c->marks++;
            if (!c->first_us) c->first_us = now;
            if (ways < asked.requests * asked.chunks) way_ms[ways++] = (double)(now - c->stamp_us) / 1e3;
        } else if (byte == '@') {
            c->digits = 0;
            c->stamp_us = 0;
        }
        if (byte == done[c->done_letters])
            c->is_done |= ++c->done_letters == 6;
        else
            c->done_letters = byte == done[0];
        if (c->done_letters == 6) c->done_letters = 0;
    }
}

static void read_head(client *c) {
    c->status = atoi(c->head + 9);
    c->ends_after = strcasestr(c->head, "\nconnection: close") != NULL;
    char *length = strcasestr(c->head, "\ncontent-length:");
    if (strcasestr(c->head, "\ntransfer-encoding:")) {
        c->state = CHUNK_SIZE;
        c->in_line = 0;
    } else if (length) {
        c->left = strtoul(length + 16, NULL, 10);
        c->state = LENGTH;
        if (!c->left) end(c, NULL);
    } else {
        c->state = TO_THE_END;
        c->ends_after = 1;
    }
}

static size_t read_some(client *c, const char *bytes, size_t count, int64_t now) {
    size_t used = 1;
    switch (c->state) {
    case HEAD: {
        size_t before = c->head_bytes;
        used = count < MAX_HEAD - 1 - before ? count : MAX_HEAD - 1 - before;
        if (!used) {
            end(c, "the head does not end");
            return count;
        }
        memcpy(c->head + before, bytes, used);
        c->head_bytes += used;
        c->head[c->head_bytes] = 0;
        char *blank = strstr(c->head + (before > 3 ? before - 3 : 0), "\r\n\r\n");
        if (blank) {
            used = (size_t)(blank + 4 - c->head) - before;
            blank[4] = 0;
            read_head(c);
        }
        return used;
    }
    case LENGTH:
    case CHUNK:
        used = count < c->left ? count : c->left;
        read_body(c, bytes, used, now);
        c->left -= used;
        if (!c->left && c->state == LENGTH)
            end(c, NULL);
        else if (!c->left)
            c->state = CHUNK_END;
        return used;
    case CHUNK_SIZE:
        if (*bytes != '\n') {
            if (c->in_line < 31) c->line[c->in_line++] = *bytes;
        } else {
            c->line[c->in_line] = 0;
            c->left = strtoul(c->line, NULL, 16);
            c->in_line = 0;
            c->state = c->left ? CHUNK : TRAILER;
        }
        return 1;
    case CHUNK_END:
        if (*bytes == '\n') c->state = CHUNK_SIZE;
        return 1;
    case TRAILER:
        if (*bytes == '\n') end(c, NULL);
        return 1;
    default:
        read_body(c, bytes, count, now);
        return count;
    }
}

static void read_answer(client *c) {
    ssize_t count = recv(c->fd, piece, sizeof piece, 0);
    if (count > 0) {
        int64_t now = now_us();
        for (size_t at = 0; at < (size_t)count && c->is_busy;)
            at += read_some(c, piece + at, (size_t)count - at, now);
    } else if (count == 0 || errno != EAGAIN) {
        if (!c->is_busy) {
            close(c->fd);
            connect_client(c);
        } else {
            c->ends_after = 1;
            end(c, c->state == TO_THE_END ? NULL : "the connection ended early");
        }
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_quantiles(const char *name, double *values, long count) {
    if (!count) return;
    qsort(values, (size_t)count, sizeof *values, by_size);
    printf(",\"%s_p50_ms\":%.4f,\"%s_p99_ms\":%.4f,\"%s_p999_ms\":%.4f", name, values[count / 2], name,
           values[count * 99 / 100], name, values[count * 999 / 1000]);
}

static void read_options(int count, char **options) {
    struct {
        const char *name;
        long *value;
    } known[] = {{"port", &asked.port}, {"requests", &asked.requests},
                 {"connections", &asked.connections}, {"stream", &asked.stream},
                 {"chunks", &asked.chunks}, {"pause_us", &asked.pause_us},
                 {"think_us", &asked.think_us}, {"prompt_bytes", &asked.prompt_bytes},
                 {"prompts", &asked.prompts}, {"first_prompt", &asked.first_prompt},
                 {"stagger_us", &asked.stagger_us}, {"for_ms", &asked.for_ms}};
    for (int i = 0; i < count; i++) {
        char *value = strchr(options[i], '=');
        if (!value) exit(2);
        *value++ = 0;
        int found = 0;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strcmp(options[i], known[k].name)) *known[k].value = atol(value), found = 1;
        if (!found) {
            fprintf(stderr, "no option %s\n", options[i]);
            exit(2);
        }
    }
    if (asked.connections > asked.requests) asked.connections = asked.requests;
}

static int run_load(void) {
    target = loopback((int)asked.port);
    latency_ms = malloc(sizeof(double) * (size_t)(asked.requests + 1));
    first_ms = malloc(sizeof(double) * (size_t)(asked.requests + 1));
    way_ms = malloc(sizeof(double) * (size_t)(asked.stream ? asked.requests * asked.chunks + 1 : 1));
    client *clients = calloc((size_t)asked.connections, sizeof *clients);
    int64_t began_us = now_us(), until_us = began_us + asked.for_ms * 1000;
    long started = 0;
    struct epoll_event events[MAX_EVENTS];
    while (ended < asked.requests && bad < 50) {
        int64_t now = now_us(), wake_us = until_us;
        if (now >= until_us) break;
        for (; started < asked.connections; started++) {
            int64_t due_us = began_us + started * asked.stagger_us;
            if (due_us > now) {
                if (due_us < wake_us) wake_us = due_us;
                break;
            }
            connect_client(&clients[started]);
            begin(&clients[started]);
        }
        int count = wait_for_events(events, wake_us);
        for (int i = 0; i < count; i++) {
            client *c = events[i].data.ptr;
            if (c->is_connecting && events[i].events & EPOLLOUT) {
                c->is_connecting = 0;
                if (c->is_busy)
                    send_request(c);
                else
                    wants(c, 0);
            } else if (events[i].events & EPOLLOUT && c->is_busy) {
                send_request(c);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answer(c);
        }
    }
    double seconds = (double)(now_us() - began_us) / 1e6;
    printf("{\"good\":%ld,\"bad\":%ld,\"seconds\":%.4f,\"per_s\":%.2f,\"chunks\":%ld", good, bad, seconds,
           (double)good / seconds, ways);
    print_quantiles("latency", latency_ms, latencies);
    print_quantiles("first", first_ms, firsts);
    print_quantiles("way", way_ms, ways);
    printf(",\"mistake\":\"%s\"}\n", first_mistake);
    return 0;
}

int main(int count, char **options) {
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (count == 3 && !strcmp(options[1], "backend")) run_backend(atoi(options[2]));
    if (count < 3 || strcmp(options[1], "load")) {
        fprintf(stderr, "rig backend PORT | rig load key=value ...\n");
        return 2;
    }
    read_options(count - 2, options + 2);
    return run_load();
}
