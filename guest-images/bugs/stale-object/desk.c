// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * desk: a help desk with callers and notes, by way of /proc/desk.
 *
 *	call NUMBER		a caller calls
 *	hold NUMBER		and has to wait for an answer
 *	answer NUMBER		is answered, and does not wait any more
 *	hangup NUMBER		leaves
 *	note TEXT		is pinned to the wall
 *	music			plays a little to all callers who wait
 */
#include <linux/list.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define NOTES 32
#define LINE_BYTES 128

struct caller {
	struct hlist_node calls;
	unsigned int number;
	unsigned int played;
	struct caller *next_waiting;
	char where[32];
};

struct note {
	char text[sizeof(struct caller)];
};

/* Callers and notes are all the same size, and there are few of either: one cache will do. */
static struct kmem_cache *cards;
static HLIST_HEAD(calls);
static struct caller *waiting;
static struct note *wall[NOTES];
static unsigned int notes;

static struct caller *find(unsigned int number)
{
	struct caller *caller;

	hlist_for_each_entry(caller, &calls, calls)
		if (caller->number == number)
			return caller;
	return NULL;
}

static noinline int call(unsigned int number)
{
	struct caller *caller = kmem_cache_zalloc(cards, GFP_KERNEL);

	if (!caller)
		return -ENOMEM;
	caller->number = number;
	snprintf(caller->where, sizeof(caller->where), "line %u", number % 8);
	hlist_add_head(&caller->calls, &calls);
	return 0;
}

static noinline void hold(struct caller *caller)
{
	caller->next_waiting = waiting;
	waiting = caller;
}

static noinline void answer(struct caller *caller)
{
	struct caller **link;

	for (link = &waiting; *link; link = &(*link)->next_waiting)
		if (*link == caller) {
			*link = caller->next_waiting;
			break;
		}
}

static noinline void forget(struct caller *caller)
{
	kmem_cache_free(cards, caller);
}

static noinline void hang_up(struct caller *caller)
{
	hlist_del(&caller->calls);
	caller->number = 0;
	forget(caller); /* [1] */
	pr_debug("a caller left\n");
}

static noinline int pin(const char *text)
{
	struct note *note;

	if (notes == NOTES)
		return -ENOSPC;
	note = kmem_cache_zalloc(cards, GFP_KERNEL);
	if (!note)
		return -ENOMEM;
	snprintf(note->text, sizeof(note->text), "%s", text); /* [2] */
	wall[notes++] = note;
	return 0;
}

static noinline void music(void)
{
	struct caller *caller;

	for (caller = waiting; caller; caller = caller->next_waiting)
		caller->played++; /* [3] */
}

static int obey(const char *line)
{
	struct caller *caller;
	unsigned int number;

	if (!strncmp(line, "note ", 5))
		return pin(line + 5);
	if (!strncmp(line, "music", 5)) {
		music();
		return 0;
	}
	if (sscanf(line, "call %u", &number) == 1)
		return call(number);
	if (sscanf(line, "%*s %u", &number) != 1)
		return -EINVAL;
	caller = find(number);
	if (!caller)
		return -ENOENT;
	if (!strncmp(line, "hold", 4))
		hold(caller);
	else if (!strncmp(line, "answer", 6))
		answer(caller);
	else if (!strncmp(line, "hangup", 6))
		hang_up(caller);
	else
		return -EINVAL;
	return 0;
}

static ssize_t desk_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char line[LINE_BYTES];
	int error;

	if (size >= sizeof(line))
		return -E2BIG;
	if (copy_from_user(line, data, size))
		return -EFAULT;
	line[size] = 0;
	error = obey(line);
	return error ? error : size;
}

static const struct proc_ops desk_ops = {
	.proc_write = desk_write,
};

static int __init desk_init(void)
{
	/* Not shared with other caches of that size: what is in it may be copied to users. */
	cards = kmem_cache_create_usercopy("desk_cards", sizeof(struct caller), 0, 0, 0, sizeof(struct note), NULL);
	if (!cards)
		return -ENOMEM;
	return proc_create("desk", 0200, NULL, &desk_ops) ? 0 : -ENOMEM;
}

/* The desk is never closed: there is no way to unload it. */
module_init(desk_init);
MODULE_DESCRIPTION("A help desk");
MODULE_LICENSE("Dual MIT/GPL");
