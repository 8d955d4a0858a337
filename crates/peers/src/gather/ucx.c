/* Gather sends by UCX: tagged messages whose datatype is a list of pieces. UCX_TLS says over what. */
#include "gather.h"

#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;

static void must(const char *what, ucs_status_t status) {
    if (status != UCS_OK) fail(what, ucs_status_string(status));
}

static void net_open(const char *provider, int sender) {
    (void)sender;
    setenv("UCX_TLS", provider, 1);
    ucp_config_t *config;
    must("ucp_config_read", ucp_config_read(NULL, NULL, &config));
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    must("ucp_init", ucp_init(&params, config, &context));
    ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    must("ucp_worker_create", ucp_worker_create(context, &single, &worker));
    /* Its lists have no limit of their own: every record an entry. */
    entries_max = per_message;
}

static const char *net_address(void) {
    ucp_address_t *address;
    size_t length;
    must("ucp_worker_get_address", ucp_worker_get_address(worker, &address, &length));
    char *text = memory(2 * length + 1);
    for (size_t i = 0; i < length; i++) sprintf(text + 2 * i, "%02x", ((unsigned char *)address)[i]);
    return text;
}

static void net_connect(const char *text) {
    size_t length = strlen(text) / 2;
    unsigned char *address = memory(length + 1);
    for (size_t i = 0; i < length; i++) {
        char byte[3] = {text[2 * i], text[2 * i + 1], 0};
        address[i] = (unsigned char)strtoul(byte, NULL, 16);
    }
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)address};
    must("ucp_ep_create", ucp_ep_create(worker, &to, &endpoint));
}

static void net_accept(void) {
    for (size_t slot = 0; slot < slots; slot++) net_post_receive(slot);
}

static void on_sent(void *request, ucs_status_t status, void *slot) {
    must("a send", status);
    sent((size_t)slot);
    ucp_request_free(request);
}

static int net_send(size_t slot, const struct iovec *list, size_t count) {
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = (void *)slot,
    };
    ucs_status_ptr_t request;
    if (count == 1) {
        request = ucp_tag_send_nbx(endpoint, list[0].iov_base, list[0].iov_len, 1, &param);
    } else {
        /* The fields of ucp_dt_iov_t are those of an iovec. */
        _Static_assert(sizeof(ucp_dt_iov_t) == sizeof(struct iovec), "a list of UCX is an array of iovecs");
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = ucp_dt_make_iov();
        request = ucp_tag_send_nbx(endpoint, list, count, 1, &param);
    }
    if (UCS_PTR_IS_ERR(request)) must("ucp_tag_send_nbx", UCS_PTR_STATUS(request));
    if (!request) sent(slot);
    return 1;
}

/* Received and not yet looked at: a receive that is posted anew may be met at once, within the call. */
static size_t came[DEPTH], came_bytes[DEPTH], came_count;

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *slot) {
    must("a receive", status);
    came[came_count] = (size_t)slot;
    came_bytes[came_count++] = info->length;
    ucp_request_free(request);
}

static void net_post_receive(size_t slot) {
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = on_received,
        .user_data = (void *)slot,
    };
    ucs_status_ptr_t request = ucp_tag_recv_nbx(worker, ring + slot * slot_bytes, slot_bytes, 1, UINT64_MAX, &param);
    if (UCS_PTR_IS_ERR(request)) must("ucp_tag_recv_nbx", UCS_PTR_STATUS(request));
}

static void net_progress(void) {
    ucp_worker_progress(worker);
    while (came_count > 0) {
        came_count--;
        received(came[came_count], came_bytes[came_count]);
    }
}

static void net_flush(void) {
    ucp_request_param_t none = {0};
    ucs_status_ptr_t request = ucp_ep_flush_nbx(endpoint, &none);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
}
