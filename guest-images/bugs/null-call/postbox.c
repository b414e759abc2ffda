// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * postbox: four ports that take letters, by way of /proc/postbox.
 *
 *	open PORT		the port takes letters from now on
 *	close PORT		and now it does not
 *	letter PORT TEXT	delivers TEXT
 */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define PORTS 4
#define HEADER_BYTES 32
#define LINE_BYTES 512

struct port {
	/* Unpacked bytes of a letter, and the checksum that ends them. */
	size_t limit;
	int (*reply)(struct port *port, u8 code);
	unsigned long letters;
	u8 last_code;
};

static struct port ports[PORTS];

static int acknowledge(struct port *port, u8 code)
{
	port->last_code = code;
	return 0;
}

static noinline void port_open(struct port *port)
{
	port->limit = HEADER_BYTES + 1;
	port->reply = acknowledge;
}

static noinline void port_close(struct port *port)
{
	port->limit = 0;
	port->reply = NULL; /* [3] */
}

/* Letters go over the wire with every bit of their marker inverted. */
static noinline void unpack(u8 *header, const char *letter, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		header[i] = letter[i] ^ 0xa5; /* [2] */
}

static noinline int port_receive(struct port *port, const char *letter, size_t length)
{
	u8 header[HEADER_BYTES];

	unpack(header, letter, min(length, port->limit - 1));
	port->letters++;
	return port->reply(port, header[0]); /* [1] */
}

static noinline int obey(const char *line)
{
	unsigned int number;
	int text = 0;

	if (sscanf(line, "open %u", &number) == 1 && number < PORTS)
		port_open(&ports[number]);
	else if (sscanf(line, "close %u", &number) == 1 && number < PORTS)
		port_close(&ports[number]);
	else if (sscanf(line, "letter %u %n", &number, &text) == 1 && number < PORTS)
		return port_receive(&ports[number], line + text, strlen(line + text));
	else
		return -EINVAL;
	return 0;
}

static ssize_t postbox_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char *line;
	int error;

	if (size >= LINE_BYTES)
		return -E2BIG;
	line = memdup_user_nul(data, size);
	if (IS_ERR(line))
		return PTR_ERR(line);
	error = obey(line);
	kfree(line);
	return error ? error : size;
}

static const struct proc_ops postbox_ops = {
	.proc_write = postbox_write,
};

static int __init postbox_init(void)
{
	return proc_create("postbox", 0200, NULL, &postbox_ops) ? 0 : -ENOMEM;
}

static void __exit postbox_exit(void)
{
	remove_proc_entry("postbox", NULL);
}

module_init(postbox_init);
module_exit(postbox_exit);
MODULE_DESCRIPTION("Ports that take letters");
MODULE_LICENSE("Dual MIT/GPL");
