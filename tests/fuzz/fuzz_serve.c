/*
 * Any line as a request of ap-shard --serve, over a fixed graph in two blocks: nothing
 * may crash, leak or exit, and the answer is one line of JSON.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "serve/serve.h"
#include "problem/shard.h"

#include "../unit/stage_case.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct server *open_server(void)
{
    static char *argv[] = {"ap-shard",    "--serve", "--cluster", "cpu-8",
                           "--algorithm", "data",    "sample",    NULL};
    static struct ap_arena arena;
    static struct shard_request req;
    static struct shard_job job = {.arena = &arena};
    static struct ap_tool tool;
    static struct ap_doc doc;
    struct ap_err err = {{0}};
    static const char blocks[] =
        ",\"blocks\":{\"algorithm\":\"given\",\"n\":2,\"block_of\":"
        "[0,1,0,0,0,0,0,1,1,1,1,1,1,0,0,0,0,1]}}";
    struct ap_buf text = {0};

    shard_read_options(&arena, &tool, &req, 7, argv);
    ap_buf_puts(&text, sample_graphs[0].json);
    text.len--; /* the object goes on */
    ap_buf_puts(&text, blocks);
    const char *json = ap_arena_strndup(&arena, text.data, text.len);
    ap_buf_free(&text);
    if (ap_doc_parse(&arena, "sample", json, strlen(json), &doc, &err) ||
        ap_cluster_get(&arena, &doc, req.cluster_path, 0, &job.cluster, &err))
        abort();
    shard_job_read(&job, &doc);
    return serve_open(&job, &req, &doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct server *server;
    struct ap_buf line = {0}, out = {0};

    if (!server)
        server = open_server();
    ap_buf_put(&line, data, strnlen((const char *)data, size));
    ap_buf_putc(&line, '\0');
    serve_line(server, line.data, &out);
    json_t *answer = json_loadb(out.data, out.len, 0, NULL);
    assert(json_is_object(answer) && out.data[out.len - 1] == '\n' &&
           !memchr(out.data, '\n', out.len - 1));
    json_decref(answer);
    ap_buf_free(&line);
    ap_buf_free(&out);
    return 0;
}
