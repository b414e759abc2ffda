/* Flows: values that move through the guest by random ways. A flow begins with an instruction or an input from
 * outside, which gives a value of at most eight bytes. Then random hops move the value. The program knows where each
 * byte of the value came from, and ttvm does not tell it. */
#include <stdint.h>

typedef uint8_t u8;
typedef uint64_t u64;

enum { MOST = 8, HOPS = 12, ARENA = 32768, MARGIN = 1024 };

/* The kinds of a byte's origin. tests/tests/system/flows.rs has the same list. */
enum kind { NONE, CONSTANT, COMPUTED, PROCESSOR, PORT, UNFOLLOWED, RANDOM, DISK, KEY, ZEROS, SIGNS };

/* The origin of a byte: the address of the instruction, the byte's place on the disk, or the number of the key. */
struct from {
    u64 kind, where;
};

/* The state of a flow, and the row of the table that ttvm's test reads. */
struct flow {
    u64 at, bytes;
    /* A hop through the kernel or the C library may have copied the value in parts. */
    u64 may_split;
    /* The bit of another byte is set if different instructions certainly moved the two bytes in some hop. */
    u64 apart[MOST];
    struct from from[MOST];
    u64 value[MOST];
    char story[320];
};

/* What a hop does to the bytes. */
enum effect {
    KEEP,         /* nothing: the hop moves the whole value */
    MAY,          /* nothing, but the hop may move the value in parts */
    SPLIT,        /* different instructions move the bytes */
    SPLIT_HALVES, /* different instructions move the two halves */
    REVERSE,      /* the order of the bytes is reversed */
    SWAP_HALVES,  /* the halves change places */
    PATTERN,      /* each byte is a copy of the byte before it */
    REPEAT,       /* the value is repeated until it has eight bytes */
    ZERO_2,       /* zeros extend the value to so many bytes */
    ZERO_4,
    ZERO_8,
    SIGN_2, /* copies of the sign extend the value */
    SIGN_4,
    SIGN_8,
    SIGN_4_ZERO_8,
    LOW_1, /* only the low bytes remain */
    LOW_2,
    LOW_4,
    AGAIN, /* an instruction computes the same value again */
};

struct hop {
    const char *name;
    /* Moves the value, and returns its new place. */
    u8 *(*go)(u8 *to, u8 *from);
    /* The sum of the widths that the hop can move. */
    unsigned widths;
    enum effect effect;
};

struct origin {
    const char *name;
    /* Makes the value. */
    u8 *(*go)(u8 *to);
    unsigned bytes;
    /* The number of bytes that do not just fill a register with zeros. */
    unsigned low;
    enum kind kind;
};

extern struct flow now;
/* The address of the instruction that the test must find. */
extern u64 written_at;
/* The width of the value, for hops in assembly language. */
extern unsigned width;
/* Random status flags. */
extern u64 some_flags;
extern int own;

extern const struct hop moves[], calls[];
extern const struct origin origins[];
extern const unsigned move_count, call_count, origin_count;

u64 rnd(void);
unsigned below(unsigned limit);
/* A place for a value, with MARGIN bytes of room around it, and not near `other`. */
u8 *place(const u8 *other);
/* The other mapping of a place in the shared arena; 0 for other places. */
u8 *alias(u8 *at);
u8 *shared_place(const u8 *other);
u8 *private_place(const u8 *other);
void must(int is_good, const char *what);
void prepare_calls(void);
void prepare_origins(void);
/* Undoes what the calls of a flow have mapped. */
void forget_calls(void);
void number_flow(unsigned number);

/* The address of the instruction after HERE goes to `written_at`. */
#define HERE ".Lw%=: "
#define WHERE "; lea r11,[rip+.Lw%=]; mov qword ptr [rip+written_at],r11; "
