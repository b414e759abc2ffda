// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * answers: a driver for QEMU's `edu` device, which computes factorials and interrupts when it has one.
 *
 * The device answers one question at a time; those that come while it computes wait in a queue. Writing "N M" to
 * /proc/answers asks N times up to M questions at once.
 */
#include <linux/completion.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/random.h>

#define FACTORIAL 0x08
#define STATUS 0x20
#define STATUS_INTERRUPT 0x80
#define INTERRUPT_STATUS 0x24
#define INTERRUPT_ACKNOWLEDGE 0x64

#define MOST_AT_ONCE 8
#define TEXT_BYTES 65536

struct question {
	struct list_head waiting;
	struct completion answered;
	u32 number;
	u32 answer;
	/* Of the text that the question comes with. */
	u32 checksum;
};

static struct {
	void __iomem *registers;
	/* What the device computes. */
	struct question *current_question;
	/* What waits for it. */
	struct list_head waiting;
	unsigned int in_queue;
	unsigned int asked;
	unsigned int answered;
} desk = { .waiting = LIST_HEAD_INIT(desk.waiting) };

static u8 text[TEXT_BYTES];

static noinline void ask_device(struct question *question)
{
	desk.current_question = question;
	writel(question->number, desk.registers + FACTORIAL);
}

static noinline void next_question(void)
{
	struct question *next = list_first_entry_or_null(&desk.waiting, struct question, waiting);

	if (!next) {
		desk.current_question = NULL; /* [2] */
		return;
	}
	list_del_init(&next->waiting);
	desk.in_queue--;
	ask_device(next);
}

static irqreturn_t answer_is_there(int irq, void *data)
{
	u32 status = readl(desk.registers + INTERRUPT_STATUS);
	struct question *question = desk.current_question;

	if (!status)
		return IRQ_NONE;
	writel(status, desk.registers + INTERRUPT_ACKNOWLEDGE);
	if (question) {
		question->answer = readl(desk.registers + FACTORIAL);
		desk.answered++;
		next_question();
		complete(&question->answered);
	}
	return IRQ_HANDLED;
}

static noinline u32 checksum(u32 number)
{
	u32 sum = number;
	unsigned int i;

	for (i = 0; i < sizeof(text); i++)
		sum = (sum << 1 | sum >> 31) ^ READ_ONCE(text[i]);
	return sum;
}

static noinline void queue_up(struct question *question)
{
	question->checksum = checksum(question->number);
	list_add_tail(&question->waiting, &desk.waiting);
	desk.in_queue++; /* [1] */
}

static noinline void ask(struct question *question)
{
	if (READ_ONCE(desk.current_question)) /* [3] */
		queue_up(question);
	else
		ask_device(question);
}

static noinline void wait_for_answer(struct question *question)
{
	BUG_ON(!wait_for_completion_timeout(&question->answered, HZ));
}

static ssize_t answers_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	static struct question questions[MOST_AT_ONCE];
	unsigned int rounds, most, at_once, i;
	char line[32] = {};

	if (size >= sizeof(line) || copy_from_user(line, data, size))
		return -EFAULT;
	if (sscanf(line, "%u %u", &rounds, &most) != 2 || !most || most > MOST_AT_ONCE)
		return -EINVAL;
	while (rounds--) {
		at_once = 1 + get_random_u32() % most;
		for (i = 0; i < at_once; i++) {
			init_completion(&questions[i].answered);
			INIT_LIST_HEAD(&questions[i].waiting);
			questions[i].number = 1 + i % 12;
			desk.asked++;
			ask(&questions[i]);
		}
		for (i = 0; i < at_once; i++)
			wait_for_answer(&questions[i]);
	}
	return size;
}

static const struct proc_ops answers_ops = {
	.proc_write = answers_write,
};

static int answers_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	int error = pcim_enable_device(device);

	if (error)
		return error;
	pci_set_master(device);
	desk.registers = pcim_iomap(device, 0, 0);
	if (!desk.registers)
		return -ENOMEM;
	error = pci_alloc_irq_vectors(device, 1, 1, PCI_IRQ_ALL_TYPES);
	if (error < 0)
		return error;
	error = request_irq(pci_irq_vector(device, 0), answer_is_there, IRQF_SHARED, "answers", &desk);
	if (error)
		return error;
	writel(STATUS_INTERRUPT, desk.registers + STATUS);
	return proc_create("answers", 0200, NULL, &answers_ops) ? 0 : -ENOMEM;
}

static const struct pci_device_id answers_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{},
};

static struct pci_driver answers_driver = {
	.name = "answers",
	.id_table = answers_ids,
	.probe = answers_probe,
};

builtin_pci_driver(answers_driver);
MODULE_DEVICE_TABLE(pci, answers_ids);
MODULE_DESCRIPTION("Asks QEMU's edu device for factorials");
MODULE_LICENSE("Dual MIT/GPL");
