// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * bell: a porter who sleeps until the bell rings.
 *
 * The porter and the visitors are threads, each on a processor of its own. The next visitor rings as soon as the porter
 * has opened. After an eighth of a second without an answer the visitor complains.
 */
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched.h>

static struct task_struct *porter_task;
static struct task_struct *visitors_task;

static unsigned int rings;
static unsigned int opened;
static unsigned int visitors;

/* How long the porter slept, for statistics. */
static unsigned long naps[64];

static noinline void note_nap(void)
{
	unsigned int i;

	for (i = ARRAY_SIZE(naps) - 1; i > 0; i--)
		WRITE_ONCE(naps[i], naps[i - 1]);
	naps[0] = jiffies;
}

static int porter(void *unused)
{
	while (!kthread_should_stop()) {
		if (!READ_ONCE(rings)) { /* [1] */
			note_nap();
			set_current_state(TASK_IDLE); /* [2] */
			schedule();
			continue;
		}
		WRITE_ONCE(rings, 0);
		WRITE_ONCE(opened, opened + 1);
	}
	return 0;
}

static noinline void ring(void)
{
	WRITE_ONCE(rings, 1); /* [3] */
	wake_up_process(porter_task);
}

static noinline void wait_for_porter(unsigned int before)
{
	unsigned long begun = jiffies;

	while (READ_ONCE(opened) == before) {
		BUG_ON(time_after(jiffies, begun + HZ / 8));
		cpu_relax();
	}
}

static int visit(void *unused)
{
	while (!kthread_should_stop()) {
		unsigned int before = READ_ONCE(opened);

		ring();
		wait_for_porter(before);
		visitors++;
		cond_resched();
	}
	return 0;
}

static int __init bell_init(void)
{
	porter_task = kthread_create(porter, NULL, "porter");
	kthread_bind(porter_task, 0);
	wake_up_process(porter_task);
	visitors_task = kthread_create(visit, NULL, "visitors");
	kthread_bind(visitors_task, 1);
	wake_up_process(visitors_task);
	return 0;
}

static void __exit bell_exit(void)
{
	kthread_stop(visitors_task);
	kthread_stop(porter_task);
}

module_init(bell_init);
module_exit(bell_exit);
MODULE_DESCRIPTION("A porter and visitors");
MODULE_LICENSE("Dual MIT/GPL");
