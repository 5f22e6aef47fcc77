/* Section "stages": what is read comes out again, hand-written plans are completed, and
 * what does not fit the graph, the blocks or the cluster is refused by its place. */
#include "pipeline/stages.h"

#include "stage_case.h"
#include "tap.h"

static struct ap_arena arena;

#define STAGE(blocks, devices, more)                           \
    "{\"blocks\":[" blocks "],\"devices\":[" devices "]," more \
    "\"sharding\":{\"algorithm\":\"data\",\"mesh\":\"dp=2\"}}"
#define STAGES(head, list) "{\"microbatches\":3," head "\"stages\":[" list "]}"

static const char *written(struct ap_stages *s, const struct ap_cluster *cluster)
{
    struct ap_buf out = {0};
    struct ap_err err = {0};
    for (int i = 0; i < s->n; i++)
        if (ap_stage_put_sharding(&arena, cluster, &s->stage[i], &err))
            return err.msg[0] ? ap_arena_strdup(&arena, err.msg) : "?";
    ap_stages_to_json(s, &out);
    const char *text = ap_arena_strndup(&arena, out.data, out.len);
    ap_buf_free(&out);
    return text;
}

static void round_trip(const struct stage_case *c)
{
    struct ap_stages s, t;
    struct ap_err err = {0};
    const char *by_hand = STAGES(
        "\"schedule\":\"gpipe\",",
        STAGE("0", "0,1", "\"recompute\":\"selected\",\"recomputed\":[6],") "," STAGE(
            "1", "8,9", "\"recompute\":\"all\","));

    CHECK(read_stages_text(&arena, c, by_hand, &s, &err) == 0, "by hand: %s", err.msg);
    if (err.msg[0])
        return;
    CHECK(s.n == 2 && s.microbatches == 3 && s.schedule == AP_SCHEDULE_GPIPE &&
              s.chunks == 1 && !s.each && s.n_devices == 16 &&
              strcmp(s.algorithm, "given") == 0,
          "what is left out has its default");
    CHECK(s.stage[0].hosts == 1 && s.stage[1].devices_per_host == 2 &&
              s.stage[0].recompute == AP_RECOMPUTE_SELECTED &&
              s.stage[0].n_recomputed == 1 && s.stage[1].recompute == AP_RECOMPUTE_ALL,
          "hosts are counted, recompute is read");
    CHECK(s.stage[0].sub.n_cut_out > 0 && s.stage[1].sub.n_cut_in > 0 &&
              ap_plan_node_layout(&s.stage[0].sharding.plan, s.stage[0].sub.cut_out[0])
                      .axis[0]
                      .kind == AP_SPLIT,
          "the named plan is laid over the stage's own graph");
    const char *one = written(&s, &c->cluster);
    CHECK(read_stages_text(&arena, c, one, &t, &err) == 0, "written: %s", err.msg);
    if (err.msg[0])
        return;
    CHECK(strcmp(one, written(&t, &c->cluster)) == 0, "written twice: the same bytes");
    CHECK(t.stage[0].sharding.objective_sec > 0 && t.stage[1].sharding.peak_bytes > 0,
          "with the price and the memory of each stage");
}

static void bad_ones(const struct stage_case *c)
{
    static const struct {
        const char *json, *want;
    } t[] = {
        {STAGES("", STAGE("0", "0,1", "")), "/stages/stages: block 1 is in no stage"},
        {STAGES("", STAGE("0", "0,1", "") "," STAGE("0,1", "2,3", "")),
         "/stages/stages/1/blocks/0: block 0 is in stage 0 already"},
        {STAGES("", STAGE("0,2", "0,1", "")), "there are blocks 0 to 1, not 2"},
        {STAGES("", STAGE("1", "0,1", "") "," STAGE("0", "2,3", "")),
         "/stages/stages: stages, as blocks of blocks: "},
        {STAGES("", STAGE("0", "0,1", "") "," STAGE("1", "1,2", "")),
         "/stages/stages/1: device 1 is of stage 0 already"},
        {STAGES("", STAGE("0,1", "0,16", "")), "has devices 0 to 15, not 16"},
        {STAGES("", STAGE("0,1", "1,0", "")), "expected devices in ascending order"},
        {STAGES("", STAGE("0,1", "0,1,8", "")), "not spread evenly over level"},
        {STAGES("", STAGE("0,1", "0,1,2,3", "")), "the mesh has 2 devices, the stage 4"},
        {STAGES("", STAGE("0,1", "0,1", "\"hosts\":2,")), "on 1 hosts, not 2"},
        {STAGES("", STAGE("0,1", "0,1", "\"recompute\":\"some\",")),
         "/stages/stages/0/recompute: "},
        {STAGES("", STAGE("0,1", "0,1", "\"recompute\":\"selected\",")),
         "/stages/stages/0/recomputed: "},
        {STAGES("",
                STAGE("0,1", "0,1", "\"recompute\":\"selected\",\"recomputed\":[11],")),
         "/stages/stages/0/recomputed/0: node 11 (g1) is not a forward node"},
        {STAGES("\"n_devices\":1,", STAGE("0,1", "0,1", "")), "n_devices is 1"},
        {STAGES("\"schedule\":\"zigzag\",", STAGE("0,1", "0,1", "")),
         "/stages/schedule: "},
        {STAGES("\"chunks\":2,", STAGE("0", "0,1", "") "," STAGE("1", "0,1", "")),
         "not 2 to a device in schedule 1f1b"},
        {STAGES("\"schedule\":\"interleaved-1f1b\",\"chunks\":2,",
                STAGE("0", "0,1", "") "," STAGE("1", "2,3", "")),
         "/stages/stages/1: expected the devices of stage 0"},
        {"{\"microbatches\":0,\"stages\":[]}", "/stages/microbatches: "},
        {"{\"microbatches\":1,\"stages\":[]}", "/stages/stages: expected 1 to 2 stages"},
        {"{\"microbatches\":1,\"stages\":[{\"blocks\":[0,1],\"devices\":[0],"
         "\"sharding\":{\"algorithm\":\"ilp\",\"mesh\":\"1\"}}]}",
         "/stages/stages/0/sharding/algorithm: \"ilp\" is not a named plan"},
        {"{\"microbatches\":1,\"stages\":[{\"blocks\":[0,1],\"devices\":[0,1,2,3,4],"
         "\"sharding\":{\"algorithm\":\"data\",\"mesh\":\"x\"}}]}",
         "/stages/stages/0/sharding/mesh: "},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ap_stages s;
        struct ap_err err = {0};
        int rc = read_stages_text(&arena, c, t[i].json, &s, &err);
        CHECK(rc == -1 && strstr(err.msg, t[i].want), "refused: %s", err.msg);
    }
}

static void taken_clusters(const struct stage_case *c)
{
    static const int64_t two_hosts[] = {0, 1, 8, 9}, one[] = {3};
    struct ap_cluster own;
    struct ap_err err = {0};
    CHECK(ap_cluster_take(&c->cluster, 4, two_hosts, &own, &err) == 0 &&
              own.levels[0].size == 2 && own.levels[1].size == 2,
          "two devices on each of two hosts");
    CHECK(ap_cluster_take(&c->cluster, 1, one, &own, &err) == 0 &&
              ap_cluster_devices(&own) == 1,
          "one device");
}

int main(void)
{
    struct stage_case c;
    struct ap_err err = {0};
    CHECK(load_stage_case(&arena, &c, &err) == 0, "the case loads %s", err.msg);
    if (!err.msg[0]) {
        round_trip(&c);
        bad_ones(&c);
        taken_clusters(&c);
    }
    ap_arena_free(&arena);
    return tap_done();
}
