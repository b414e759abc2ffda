// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * journal: appends records to a block device, by way of /proc/journal.
 *
 *	open PATH	uses this device
 *	append N	writes N records and waits for them
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/semaphore.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

/* A page, and room for its checksums. */
#define SECTORS_PER_RECORD (2 * PAGE_SIZE / SECTOR_SIZE)
#define LINE_BYTES 64

static struct {
	struct block_device *device;
	/* Guards what follows. */
	struct semaphore lock;
	sector_t end;
	unsigned int pending;
	unsigned int written;
	unsigned int failed;
} journal = { .lock = __SEMAPHORE_INITIALIZER(journal.lock, 1) };

static DECLARE_WAIT_QUEUE_HEAD(all_written);

static void record_done(struct bio *bio)
{
	down(&journal.lock); /* [1] */
	if (bio->bi_status)
		journal.failed++;
	journal.written++;
	if (!--journal.pending)
		wake_up(&all_written);
	up(&journal.lock);
	bio_put(bio);
}

static noinline void submit_record(void)
{
	struct bio *bio = bio_alloc(journal.device, 1, REQ_OP_WRITE, GFP_NOIO);

	__bio_add_page(bio, ZERO_PAGE(0), PAGE_SIZE, 0);
	bio->bi_iter.bi_sector = journal.end;
	bio->bi_end_io = record_done;
	journal.end = (journal.end + SECTORS_PER_RECORD) % bdev_nr_sectors(journal.device);
	journal.pending++;
	submit_bio(bio);
}

static noinline int append(unsigned int records)
{
	struct blk_plug plug;
	unsigned int i;

	if (!journal.device)
		return -ENODEV;
	/* All records go to the device together, when the plug is pulled. */
	blk_start_plug(&plug);
	down(&journal.lock); /* [2] */
	for (i = 0; i < records; i++)
		submit_record();
	up(&journal.lock);
	blk_finish_plug(&plug);
	wait_event(all_written, !READ_ONCE(journal.pending));
	return 0;
}

static int open_device(const char *path)
{
	struct block_device *device = blkdev_get_by_path(path, FMODE_READ | FMODE_WRITE, NULL);

	if (IS_ERR(device))
		return PTR_ERR(device);
	journal.device = device;
	return 0;
}

static ssize_t journal_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char line[LINE_BYTES];
	unsigned int records;
	int error = -EINVAL;

	if (size >= sizeof(line))
		return -E2BIG;
	if (copy_from_user(line, data, size))
		return -EFAULT;
	line[size] = 0;
	if (!strncmp(line, "open ", 5))
		error = open_device(strim(line + 5));
	else if (sscanf(line, "append %u", &records) == 1)
		error = append(records);
	return error ? error : size;
}

static const struct proc_ops journal_ops = {
	.proc_write = journal_write,
};

static int __init journal_init(void)
{
	return proc_create("journal", 0200, NULL, &journal_ops) ? 0 : -ENOMEM;
}

/* A journal is never closed: there is no way to unload it. */
module_init(journal_init);
MODULE_DESCRIPTION("A journal on a block device");
MODULE_LICENSE("Dual MIT/GPL");
