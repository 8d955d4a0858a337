/* Gather sends by libfabric: connected endpoints over tcp, datagram endpoints that are reliable over shm. */
#include "gather.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

struct request {
    struct fi_context2 context; /* first: the provider's, while the request is pending */
    size_t slot;
    int sends;
};

static struct request requests[2][DEPTH];
static struct fi_info *hints, *found;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *endpoint;
static struct fid_pep *passive;
static struct fid_eq *events;
static struct fid_cq *completions;
static struct fid_av *addresses;
static fi_addr_t peer = FI_ADDR_UNSPEC;

static void must(const char *what, long result) {
    if (result < 0) fail(what, fi_strerror((int)-result));
}

static int connected(void) { return hints->ep_attr->type == FI_EP_MSG; }

static void look_up(const char *port, uint64_t flags) {
    must("fi_getinfo", fi_getinfo(FI_VERSION(1, 15), connected() ? "127.0.0.1" : NULL, port, flags, hints, &found));
    must("fi_fabric", fi_fabric(found->fabric_attr, &fabric, NULL));
    struct fi_eq_attr wait = {.wait_obj = FI_WAIT_UNSPEC};
    if (connected()) must("fi_eq_open", fi_eq_open(fabric, &wait, &events, NULL));
}

static void make_endpoint(struct fi_info *of) {
    struct fi_cq_attr queue = {.size = 4 * DEPTH, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    must("fi_domain", fi_domain(fabric, of, &domain, NULL));
    must("fi_cq_open", fi_cq_open(domain, &queue, &completions, NULL));
    must("fi_endpoint", fi_endpoint(domain, of, &endpoint, NULL));
    must("fi_ep_bind", fi_ep_bind(endpoint, &completions->fid, FI_SEND | FI_RECV));
    if (connected()) {
        must("fi_ep_bind", fi_ep_bind(endpoint, &events->fid, 0));
    } else {
        struct fi_av_attr table = {.type = FI_AV_TABLE, .count = 4};
        must("fi_av_open", fi_av_open(domain, &table, &addresses, NULL));
        must("fi_ep_bind", fi_ep_bind(endpoint, &addresses->fid, 0));
    }
    must("fi_enable", fi_enable(endpoint));
    entries_max = of->tx_attr->iov_limit;
}

/* Waits for an event of the connection. */
static struct fi_info *await_event(uint32_t wanted) {
    struct fi_eq_cm_entry entry;
    uint32_t event = 0;
    ssize_t got = fi_eq_sread(events, &event, &entry, sizeof entry, 20000, 0);
    if (got == -FI_EAVAIL) {
        struct fi_eq_err_entry error = {0};
        fi_eq_readerr(events, &error, 0);
        fail("connection", fi_strerror(error.err));
    }
    must("fi_eq_sread", got);
    if (event != wanted) fail("connection", "another event than was due");
    return entry.info;
}

static void net_open(const char *provider, int sender) {
    hints = fi_allocinfo();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = strcmp(provider, "tcp") == 0 ? FI_EP_MSG : FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = 0;
    if (connected() && sender) return; /* looked up with the address */
    look_up(NULL, connected() ? FI_SOURCE : 0);
    if (!connected()) {
        make_endpoint(found);
        return;
    }
    must("fi_passive_ep", fi_passive_ep(fabric, found, &passive, NULL));
    must("fi_pep_bind", fi_pep_bind(passive, &events->fid, 0));
    must("fi_listen", fi_listen(passive));
}

static const char *net_address(void) {
    static char text[512];
    size_t length = sizeof text - 1;
    if (!connected()) {
        must("fi_getname", fi_getname(&endpoint->fid, text, &length));
        return text;
    }
    struct sockaddr_in address;
    length = sizeof address;
    must("fi_getname", fi_getname(&passive->fid, &address, &length));
    snprintf(text, sizeof text, "%d", ntohs(address.sin_port));
    return text;
}

static void net_connect(const char *address) {
    if (!connected()) {
        if (fi_av_insert(addresses, address, 1, &peer, 0, NULL) != 1) fail("fi_av_insert", address);
        return;
    }
    look_up(address, 0);
    make_endpoint(found);
    must("fi_connect", fi_connect(endpoint, found->dest_addr, NULL, 0));
    await_event(FI_CONNECTED);
}

static void net_accept(void) {
    if (connected()) make_endpoint(await_event(FI_CONNREQ));
    for (size_t slot = 0; slot < slots; slot++) net_post_receive(slot);
    if (!connected()) return;
    must("fi_accept", fi_accept(endpoint, NULL, 0));
    await_event(FI_CONNECTED);
}

static int net_send(size_t slot, const struct iovec *list, size_t count) {
    struct request *request = &requests[1][slot];
    request->slot = slot;
    request->sends = 1;
    ssize_t result = fi_sendv(endpoint, list, NULL, count, peer, &request->context);
    if (result == -FI_EAGAIN) return 0;
    must("fi_sendv", result);
    return 1;
}

static void net_post_receive(size_t slot) {
    struct request *request = &requests[0][slot];
    request->slot = slot;
    request->sends = 0;
    ssize_t result;
    while ((result = fi_recv(endpoint, ring + slot * slot_bytes, slot_bytes, NULL, FI_ADDR_UNSPEC,
                             &request->context)) == -FI_EAGAIN) {
        /* Its queue is as long as ours, so a place comes free by itself. */
        fi_cq_read(completions, NULL, 0);
    }
    must("fi_recv", result);
}

static void net_progress(void) {
    struct fi_cq_msg_entry done[16];
    ssize_t count = fi_cq_read(completions, done, 16);
    if (count == -FI_EAGAIN) return;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(completions, &error, 0);
        if (error.err == FI_ECANCELED || error.err == FI_ENOTCONN || error.err == FI_ECONNRESET) _exit(0);
        fail("a request", fi_strerror(error.err));
    }
    must("fi_cq_read", count);
    for (ssize_t i = 0; i < count; i++) {
        struct request *request = done[i].op_context;
        if (request->sends)
            sent(request->slot);
        else
            received(request->slot, done[i].len);
    }
}

static void net_flush(void) {}
