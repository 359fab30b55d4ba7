/* A module whose commands call the command that they are given, by RM_Call:
 *
 *     calling.call LOCK.INFO key              as the server itself: without a user
 *     calling.call_as_user LOCK.INFO key      as the user of its own caller
 */

#include <stddef.h>

enum { OK = 0, ERR = 1 };

typedef int get_api_fn(const char *name, void *function);
typedef int command_fn(void *ctx, void **argv, int argc);

static void (*set_attributes)(void *ctx, const char *name, int version, int api_version);
static int (*create_command)(void *ctx, const char *name, command_fn *command, const char *flags,
                             int first_key, int last_key, int key_step);
static void *(*call)(void *ctx, const char *command, const char *format, ...);
static int (*reply_with)(void *ctx, void *reply);
static int (*wrong_arity)(void *ctx);
static const char *(*text_of)(const void *string, size_t *len);

static int pass_on(void *ctx, const char *format, void **argv, int argc) {
    if (argc < 2) return wrong_arity(ctx);
    return reply_with(ctx, call(ctx, text_of(argv[1], NULL), format, argv + 2, (size_t)(argc - 2)));
}

static int call_plainly(void *ctx, void **argv, int argc) { return pass_on(ctx, "Ev", argv, argc); }

static int call_as_user(void *ctx, void **argv, int argc) { return pass_on(ctx, "ECv", argv, argc); }

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    get_api_fn *get_api = *(get_api_fn **)ctx;
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) != OK ||
        get_api("RedisModule_CreateCommand", &create_command) != OK ||
        get_api("RedisModule_Call", &call) != OK ||
        get_api("RedisModule_ReplyWithCallReply", &reply_with) != OK ||
        get_api("RedisModule_WrongArity", &wrong_arity) != OK ||
        get_api("RedisModule_StringPtrLen", &text_of) != OK)
        return ERR;
    set_attributes(ctx, "calling", 1, 1);
    if (create_command(ctx, "calling.call", call_plainly, "readonly", 0, 0, 0) != OK) return ERR;
    return create_command(ctx, "calling.call_as_user", call_as_user, "readonly", 0, 0, 0);
}
