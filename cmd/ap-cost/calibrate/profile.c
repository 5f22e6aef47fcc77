/* Profiles of ap-exec --profile (schemas/profile.json). */
#include "calibrate/calibrate.h"

#include <string.h>

static int bad(const char *file, const struct ap_err *why, struct ap_err *err)
{
    return ap_err_set(err, "%s: %s", file, why->msg);
}

static int get_amount(const json_t *o, const struct ap_at *at, const char *key,
                      double least, double *out, struct ap_err *err)
{
    const struct ap_at here = {at, key, 0};
    if (ap_get_num(o, at, key, out, err))
        return -1;
    if (*out < least || *out > 1e30)
        return ap_at_err(&here, err, "expected a number from %g to 1e30, got %g", least,
                         *out);
    return 0;
}

/* Hosts and ranks of the first profile are the cluster. */
static int make_cluster(struct cal *c, const json_t *doc, struct ap_err *err)
{
    struct ap_cluster *to = &c->cluster;
    const char *device;
    struct ap_ints hosts;
    const struct ap_at at = {NULL, "hosts", 0};
    int64_t n_hosts, ranks;

    if (ap_get_str(doc, NULL, "device", &device, err) ||
        ap_get_int(doc, NULL, "memory_bytes", 1, INT64_MAX, &to->memory_bytes, err) ||
        ap_get_int(doc, NULL, "ranks", 1, 1 << 20, &ranks, err) ||
        ap_get_int(doc, NULL, "n_hosts", 1, ranks, &n_hosts, err) ||
        ap_get_ints(c->arena, doc, NULL, "hosts", &hosts, err))
        return -1;
    if (hosts.n != ranks)
        return ap_at_err(&at, err, "%d numbers for %lld ranks", hosts.n,
                         (long long)ranks);
    const int64_t each = ranks / n_hosts;
    for (int r = 0; r < hosts.n; r++)
        if (hosts.v[r] != r / each || each * n_hosts != ranks)
            return ap_at_err(&at, err,
                             "hosts are not of equal numbers of ranks, one "
                             "after the other: describe them by --cluster");
    to->name = "measured";
    to->device = ap_arena_strdup(c->arena, device);
    to->flops_per_sec[AP_F32] = to->memory_bandwidth_bytes_per_sec = 1;
    to->efficiency = 1;
    to->n_levels = n_hosts > 1 ? 2 : 1;
    to->levels[0] = (struct ap_link_level){
        .name = "host", .size = each, .bandwidth_bytes_per_sec = 1e10};
    to->levels[1] = (struct ap_link_level){.name = "network",
                                           .size = n_hosts,
                                           .bandwidth_bytes_per_sec = 1e9,
                                           .uplink = true};
    for (int op = 0; op < AP_N_OPS; op++)
        to->collective_efficiency[op] = 1;
    c->has_cluster = true;
    return 0;
}

static int read_kernel(struct cal *c, const json_t *o, const struct ap_at *at,
                       double *sum, struct ap_err *err)
{
    const struct ap_at kernel_at = {at, "kernel", 0}, dtype_at = {at, "dtype", 0};
    const char *kernel, *dtype;
    struct cal_class key = {.what = CAL_KERNEL};
    struct cal_sample s;
    double count;

    if (ap_get_str(o, at, "kernel", &kernel, err) ||
        ap_get_str(o, at, "dtype", &dtype, err) ||
        get_amount(o, at, "flops", 0, &s.flops, err) ||
        get_amount(o, at, "bytes", 0, &s.bytes, err) ||
        get_amount(o, at, "count", 0, &count, err) ||
        get_amount(o, at, "sec", 0, &s.sec, err))
        return -1;
    key.kernel = ap_kernel_find(kernel);
    if (key.kernel == AP_N_KERNELS)
        return ap_at_err(&kernel_at, err, "no kernel has this name");
    key.dtype = ap_dtype_find(dtype, strlen(dtype));
    if (key.dtype == AP_N_DTYPES || key.dtype == AP_TUPLE)
        return ap_at_err(&dtype_at, err, "no element type has this name");
    s.weight = s.sec * count;
    *sum += s.weight;
    if (s.sec > 0)
        cal_add(c, cal_class_of(c, &key), &s);
    return 0;
}

/* "groups": lists of ranks. */
static int read_groups(struct cal *c, const json_t *o, const struct ap_at *at,
                       struct cal_class *key, struct ap_err *err)
{
    const struct ap_at list_at = {at, "groups", 0};
    json_t *groups;

    if (ap_get_arr(o, at, "groups", &groups, err))
        return -1;
    const int n = (int)json_array_size(groups);
    int *first = AP_NEW_N(c->arena, n + 1, int), total = 0;
    for (int g = 0; g < n; g++)
        total += (int)json_array_size(json_array_get(groups, (size_t)g));
    int64_t *device = AP_NEW_N(c->arena, total + 1, int64_t);
    for (int g = 0; g < n; g++) {
        const struct ap_at here = {&list_at, NULL, g};
        const json_t *list = json_array_get(groups, (size_t)g);
        const int size = (int)json_array_size(list);
        first[g + 1] = first[g] + size;
        if (size < 2 || (g > 0 && size != first[1]))
            return ap_at_err(&here, err,
                             "expected groups of equally many ranks, at least 2");
        for (int i = 0; i < size; i++) {
            const json_t *rank = json_array_get(list, (size_t)i);
            if (!json_is_integer(rank))
                return ap_at_err(&here, err, "expected numbers of ranks");
            device[first[g] + i] = json_integer_value(rank);
        }
    }
    if (n == 0 || cal_level(&c->cluster, n, first, device, &key->level, &key->rings))
        return ap_at_err(&list_at, err,
                         "these are not devices of cluster %s, which has "
                         "%lld",
                         c->cluster.name, (long long)ap_cluster_devices(&c->cluster));
    key->devices = first[1];
    return 0;
}

static int read_collective(struct cal *c, const json_t *o, const struct ap_at *at,
                           struct ap_err *err)
{
    const struct ap_at op_at = {at, "op", 0};
    const char *op;
    struct cal_class key = {.what = CAL_COLLECTIVE};
    struct cal_sample s = {0};

    if (ap_get_str(o, at, "op", &op, err) || read_groups(c, o, at, &key, err) ||
        get_amount(o, at, "bytes", 0, &s.bytes, err) ||
        get_amount(o, at, "sec", 0, &s.sec, err))
        return -1;
    key.op = ap_op_find(op, strlen(op));
    if (key.op == AP_N_OPS || ap_ops[key.op].class != AP_CLASS_COLLECTIVE)
        return ap_at_err(&op_at, err, "no collective has this name");
    s.weight = 1;
    if (s.sec > 0 && s.bytes > 0)
        cal_add(c, cal_class_of(c, &key), &s);
    return 0;
}

static int read_send(struct cal *c, const json_t *o, const struct ap_at *at,
                     struct ap_err *err)
{
    const struct ap_at ranks_at = {at, "ranks", 0};
    struct cal_class key = {.what = CAL_SEND};
    struct cal_sample s = {.weight = 1};
    struct ap_ints ranks;
    const int first[] = {0, 2};

    if (ap_get_ints(c->arena, o, at, "ranks", &ranks, err) ||
        get_amount(o, at, "bytes", 0, &s.bytes, err) ||
        get_amount(o, at, "sec", 0, &s.sec, err))
        return -1;
    if (ranks.n != 2 || cal_level(&c->cluster, 1, first, ranks.v, &key.level, &key.rings))
        return ap_at_err(&ranks_at, err, "expected two devices of cluster %s",
                         c->cluster.name);
    if (s.sec > 0)
        cal_add(c, cal_class_of(c, &key), &s);
    return 0;
}

/* Weights of kernels so far count by this profile's seconds in kernels: each profile
 * counts the same. */
static void share_weights(struct cal *c, const int *before, int n_before, double sum)
{
    for (int i = 0; i < c->n && sum > 0; i++)
        for (int k = i < n_before ? before[i] : 0;
             c->class[i].what == CAL_KERNEL && k < c->class[i].n; k++)
            c->class[i].sample[k].weight /= sum;
}

static int read_lists(struct cal *c, const json_t *doc, struct ap_err *err)
{
    static const char *const names[] = {"kernels", "collectives", "sends"};
    const int n_before = c->n;
    int *before = AP_NEW_N(c->arena, n_before + 1, int);
    double sum = 0;

    for (int i = 0; i < n_before; i++)
        before[i] = c->class[i].n;
    for (int k = 0; k < 3; k++) {
        const struct ap_at list_at = {NULL, names[k], 0};
        json_t *list;
        if (ap_get_arr(doc, NULL, names[k], &list, err))
            return -1;
        for (size_t i = 0; i < json_array_size(list); i++) {
            const struct ap_at at = {&list_at, NULL, (long)i};
            const json_t *o = json_array_get(list, i);
            if (k == 0   ? read_kernel(c, o, &at, &sum, err)
                : k == 1 ? read_collective(c, o, &at, err)
                         : read_send(c, o, &at, err))
                return -1;
        }
    }
    share_weights(c, before, n_before, sum);
    return 0;
}

int cal_read_profile(struct cal *c, const char *file, const json_t *doc,
                     struct ap_err *err)
{
    struct ap_err why = {0};
    int64_t version;

    if (!json_object_get(doc, "profile"))
        return ap_err_set(err,
                          "%s: neither a profile of ap-exec nor an output of "
                          "nccl-tests",
                          file);
    if (ap_get_int(doc, NULL, "profile", 1, 1, &version, &why) ||
        (!c->has_cluster && make_cluster(c, doc, &why)) || read_lists(c, doc, &why))
        return bad(file, &why, err);
    return 0;
}
