// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * tokens: a token bucket that limits how fast packets go out.
 *
 * A timer fills the bucket, each packet takes from it what it weighs. Writing N to /proc/tokens sends N bursts.
 */
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/random.h>

#define CAPACITY 20000
#define REFILL 25
#define MAX_WEIGHT 4
static unsigned int period_ns = 20000;
#define BURST_PACKETS 100

static struct {
	unsigned int level;
	unsigned int lowest;
	unsigned int refused;
} bucket = { .level = CAPACITY, .lowest = CAPACITY };

/* What went in and out since the start, for the audit. */
static unsigned int filled = CAPACITY;
static unsigned int spent;

static struct hrtimer timer;
static u8 payload[256];

static noinline void refill(void)
{
	if (bucket.level + REFILL > CAPACITY)
		return;
	bucket.level += REFILL; /* [2] */
	filled += REFILL;
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	refill();
	hrtimer_forward_now(timer, ns_to_ktime(period_ns));
	return HRTIMER_RESTART;
}

static noinline bool take(unsigned int weight)
{
	unsigned int level = READ_ONCE(bucket.level); /* [3] */

	if (level < weight) {
		bucket.refused++;
		return false;
	}
	level -= weight;
	if (level < bucket.lowest)
		bucket.lowest = level;
	bucket.level = level; /* [1] */
	spent += weight;
	return true;
}

/* What sending costs: a checksum over 64 bytes for each token of its weight. */
static noinline unsigned int send(unsigned int weight)
{
	unsigned int sum = 0, i;

	for (i = 0; i < weight * sizeof(payload) / MAX_WEIGHT; i++)
		sum = (sum << 1 | sum >> 31) ^ READ_ONCE(payload[i]);
	return sum;
}

static noinline void send_burst(void)
{
	u8 weights[BURST_PACKETS];
	unsigned int weight, i;

	get_random_bytes(weights, sizeof(weights));
	for (i = 0; i < BURST_PACKETS; i++) {
		weight = 1 + weights[i] % MAX_WEIGHT;
		if (take(weight))
			payload[i] = send(weight);
	}
}

/* Every token is either in the bucket or spent. */
static noinline void audit(void)
{
	unsigned long flags;

	local_irq_save(flags);
	BUG_ON(bucket.level + spent != filled);
	local_irq_restore(flags);
}

static ssize_t tokens_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	unsigned int bursts;
	int error = kstrtouint_from_user(data, size, 10, &bursts);

	if (error)
		return error;
	while (bursts--) {
		send_burst();
		msleep(4);
		audit();
	}
	return size;
}

static const struct proc_ops tokens_ops = {
	.proc_write = tokens_write,
};

static int __init tokens_init(void)
{
	if (!proc_create("tokens", 0200, NULL, &tokens_ops))
		return -ENOMEM;
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer.function = tick;
	hrtimer_start(&timer, ns_to_ktime(period_ns), HRTIMER_MODE_REL);
	return 0;
}

static void __exit tokens_exit(void)
{
	remove_proc_entry("tokens", NULL);
	hrtimer_cancel(&timer);
}

module_init(tokens_init);
module_exit(tokens_exit);
module_param(period_ns, uint, 0444);
MODULE_PARM_DESC(period_ns, "Nanoseconds between two refills");
MODULE_DESCRIPTION("A token bucket");
MODULE_LICENSE("Dual MIT/GPL");
