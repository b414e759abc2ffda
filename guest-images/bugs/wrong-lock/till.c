// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * till: the money in a shop's till.
 *
 * One desk sells, another takes goods back. Each desk is a thread on a processor of its own. Writing N to /proc/till
 * counts the money N times.
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/spinlock.h>

#define LOWEST_PRICE 51
#define PRICES 50

static DEFINE_SPINLOCK(sales_lock);
static DEFINE_SPINLOCK(returns_lock);

static long till = 1000000;
/* The money after the last sales, for the shop's owner. */
static long last[16];

/* What went in and out since the start, for the count. */
static long sold = 1000000;
static long paid_back;

static struct task_struct *desks[2];
static u8 receipt[4096];

static noinline void note(long money)
{
	unsigned int i;

	for (i = ARRAY_SIZE(last) - 1; i > 0; i--)
		WRITE_ONCE(last[i], last[i - 1]);
	last[0] = money;
}

static noinline void sell(long price)
{
	long money;

	spin_lock(&sales_lock);
	money = READ_ONCE(till) + price;
	note(money);
	WRITE_ONCE(till, money); /* [1] */
	sold += price;
	spin_unlock(&sales_lock);
}

static noinline void pay_back(long price)
{
	spin_lock(&returns_lock); /* [3] */
	till -= price; /* [2] */
	paid_back += price;
	spin_unlock(&returns_lock);
}

/* What a customer takes: a checksum over the receipt. */
static noinline unsigned int serve(unsigned int customer)
{
	unsigned int sum = customer, i;

	for (i = 0; i < sizeof(receipt); i++)
		sum = (sum << 1 | sum >> 31) ^ (READ_ONCE(receipt[i]) + i);
	return sum;
}

static int desk(void *number)
{
	bool sells = number == NULL;
	unsigned int customer = 0;
	long price;

	while (!kthread_should_stop()) {
		customer = serve(customer + 1);
		price = LOWEST_PRICE + customer % PRICES;
		if (sells)
			sell(price);
		else
			pay_back(price);
		cond_resched();
	}
	return 0;
}

/* What was sold and not paid back is in the till. */
static noinline void count_money(void)
{
	spin_lock(&sales_lock);
	spin_lock(&returns_lock);
	BUG_ON(till != sold - paid_back);
	spin_unlock(&returns_lock);
	spin_unlock(&sales_lock);
}

static ssize_t till_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	unsigned int counts;
	int error = kstrtouint_from_user(data, size, 10, &counts);

	if (error)
		return error;
	while (counts--) {
		usleep_range(500, 600);
		count_money();
	}
	return size;
}

static const struct proc_ops till_ops = {
	.proc_write = till_write,
};

static int __init till_init(void)
{
	long number;

	if (!proc_create("till", 0200, NULL, &till_ops))
		return -ENOMEM;
	for (number = 0; number < ARRAY_SIZE(desks); number++) {
		desks[number] = kthread_create(desk, (void *)number, "desk/%ld", number);
		kthread_bind(desks[number], number);
		wake_up_process(desks[number]);
	}
	return 0;
}

static void __exit till_exit(void)
{
	remove_proc_entry("till", NULL);
	kthread_stop(desks[0]);
	kthread_stop(desks[1]);
}

module_init(till_init);
module_exit(till_exit);
MODULE_DESCRIPTION("The money in a till");
MODULE_LICENSE("Dual MIT/GPL");
