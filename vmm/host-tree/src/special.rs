//! File systems whose files are made by the kernel. A guest has its own, and reading the host's may act.

/// The magic numbers, from Linux's `include/uapi/linux/magic.h` and from the file systems' sources.
const SPECIAL: [u32; 32] = [
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x0000_1cd1, // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0x4249_4e4d, // binfmt_misc
    0x1980_0202, // mqueue
    0x0000_0187, // autofs
    0x6573_5543, // fusectl
    0x6e73_6673, // nsfs
    0x0000_9fa1, // openprom
    0x0000_9fa2, // usbdevfs
    0x0765_5821, // resctrl
    0x9584_58f6, // hugetlbfs
    0x6759_6969, // rpc_pipefs
    0x6e66_7364, // nfsd
    0xabba_1974, // xenfs
    0x454d_444d, // devmem
    0x5345_434d, // secretmem
    0x5049_4446, // pidfs
    0x6c6f_6f70, // binder
    0x6462_6d74, // gadgetfs and its like
];

/// True if a file system with this number (`f_type` of `statfs`) is empty for a guest.
pub(crate) fn is_special(number: impl TryInto<i64>) -> bool {
    // A number with the highest bit set may have been extended with its sign.
    number.try_into().is_ok_and(|number| SPECIAL.contains(&(number as u32)))
}
