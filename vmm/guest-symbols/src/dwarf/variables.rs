//! Variables with types. Type information has the types of per-CPU variables. [`KNOWN`] has the types of other
//! variables: the variables that people and gdb scripts read first.
//!
//! The address of a per-CPU variable is an offset (see [`Symbol::address`](crate::Symbol::address)). A CPU's own copy
//! is at `(char *)&NAME + __per_cpu_offset[CPU]`.

use std::collections::BTreeMap;

use gimli::write::{Address, AttributeValue, Expression, UnitEntryId};
use gimli::{DW_AT_external, DW_AT_location, DW_AT_type, DW_TAG_variable};

use super::types::TypeUnit;
use crate::btf::{Btf, Shape};
use crate::sections::Access;
use crate::symbols::{Symbol, Symbols};

/// Variables and their types, as written in C. `[]` stands for the number of elements that fit into the variable's
/// size.
const KNOWN: [(&str, &str); 78] = [
    ("__cpu_active_mask", "struct cpumask"),
    ("__cpu_online_mask", "struct cpumask"),
    ("__cpu_possible_mask", "struct cpumask"),
    ("__cpu_present_mask", "struct cpumask"),
    ("__per_cpu_offset", "unsigned long []"),
    ("_totalram_pages", "atomic_long_t"),
    ("all_bdis", "struct list_head"),
    ("avenrun", "unsigned long []"),
    ("bdi_list", "struct list_head"),
    ("boot_command_line", "char []"),
    ("boot_cpu_data", "struct cpuinfo_x86"),
    ("cgrp_dfl_root", "struct cgroup_root"),
    ("clocksource_list", "struct list_head"),
    ("console_drivers", "struct console *"),
    ("console_list", "struct hlist_head"),
    ("contig_page_data", "struct pglist_data"),
    ("current_stack_pointer", "unsigned long"),
    ("curr_clocksource", "struct clocksource *"),
    ("dentry_hashtable", "struct hlist_bl_head *"),
    ("dev_base_lock", "rwlock_t"),
    ("file_systems", "struct file_system_type *"),
    ("formats", "struct list_head"),
    ("high_memory", "void *"),
    ("init_cred", "struct cred"),
    ("init_css_set", "struct css_set"),
    ("init_files", "struct files_struct"),
    ("init_fs", "struct fs_struct"),
    ("init_ipc_ns", "struct ipc_namespace"),
    ("init_mm", "struct mm_struct"),
    ("init_net", "struct net"),
    ("init_nsproxy", "struct nsproxy"),
    ("init_pid_ns", "struct pid_namespace"),
    ("init_sighand", "struct sighand_struct"),
    ("init_signals", "struct signal_struct"),
    ("init_struct_pid", "struct pid"),
    ("init_task", "struct task_struct"),
    ("init_user_ns", "struct user_namespace"),
    ("init_uts_ns", "struct uts_namespace"),
    ("inode_hashtable", "struct hlist_head *"),
    ("iomem_resource", "struct resource"),
    ("ioport_resource", "struct resource"),
    ("jiffies", "unsigned long"),
    ("jiffies_64", "unsigned long"),
    ("linux_banner", "char []"),
    ("linux_proc_banner", "char []"),
    ("loops_per_jiffy", "unsigned long"),
    ("max_low_pfn", "unsigned long"),
    ("max_pfn", "unsigned long"),
    ("mem_section", "struct mem_section **"),
    ("modules", "struct list_head"),
    ("mount_hashtable", "struct hlist_head *"),
    ("net_namespace_list", "struct list_head"),
    ("node_data", "struct pglist_data *[]"),
    ("nr_cpu_ids", "unsigned int"),
    ("nr_threads", "int"),
    ("oops_in_progress", "int"),
    ("page_offset_base", "unsigned long"),
    ("panic_cpu", "atomic_t"),
    ("pci_bus_type", "struct bus_type"),
    ("pci_root_buses", "struct list_head"),
    ("phys_base", "unsigned long"),
    ("prb", "struct printk_ringbuffer *"),
    ("root_task_group", "struct task_group"),
    ("saved_command_line", "char *"),
    ("shrinker_list", "struct list_head"),
    ("slab_caches", "struct list_head"),
    ("super_blocks", "struct list_head"),
    ("system_state", "enum system_states"),
    ("tainted_mask", "unsigned long"),
    ("task_groups", "struct list_head"),
    ("tasklist_lock", "rwlock_t"),
    ("total_forks", "unsigned long"),
    ("vm_event_states", "struct vm_event_state"),
    ("vm_node_stat", "atomic_long_t []"),
    ("vm_zone_stat", "atomic_long_t []"),
    ("vmalloc_base", "unsigned long"),
    ("vmemmap_base", "unsigned long"),
    ("workqueues", "struct list_head"),
];

/// The largest size of an array in bytes, because gdb does not print larger arrays. The real size of many variables is
/// not known.
const MAX_ARRAY_BYTES: u64 = 1 << 16;

/// Adds the variables, until a limit of the unit is reached.
pub(super) fn add(unit: &mut TypeUnit, btf: &Btf<'_>, symbols: &Symbols) {
    let (types, described) = by_name(btf);
    for (name, kind) in described {
        let Some(symbol) = variable(symbols, name) else { continue };
        let Some(entry) = unit.entry(btf, kind) else { continue };
        add_one(unit, symbol, entry);
    }
    for (name, text) in KNOWN {
        let Some(symbol) = variable(symbols, name) else { continue };
        let Some(entry) = made(unit, btf, &types, text, symbol.size) else { continue };
        add_one(unit, symbol, entry);
    }
}

/// The numbers and sizes of types, by their C names.
type Types = BTreeMap<String, (u32, u64)>;
/// The numbers of variables' types, by the variables' names.
type Variables<'a> = BTreeMap<&'a str, u32>;

/// The types that [`KNOWN`] names, and the variables in the type information.
fn by_name<'a>(btf: &Btf<'a>) -> (Types, Variables<'a>) {
    let (mut types, mut variables) = (Types::new(), Variables::new());
    let wanted: Vec<&str> = KNOWN.iter().map(|(_, text)| element(text)).collect();
    for number in btf.numbers() {
        let Some(found) = btf.full(number) else { continue };
        let Some(name) = found.name else { continue };
        let (written, size) = match found.shape {
            Shape::Structure { is_union: false, size, .. } => (format!("struct {name}"), size),
            Shape::Enumeration { size, .. } => (format!("enum {name}"), size),
            Shape::Integer { size, .. } => (name.replace("long unsigned int", "unsigned long"), size),
            // Each typedef that an array in the table uses has eight bytes.
            Shape::Typedef(_) => (name.to_string(), 8),
            Shape::Variable(kind) => {
                variables.insert(name, kind);
                continue;
            }
            _ => continue,
        };
        if wanted.contains(&written.as_str()) {
            types.entry(written).or_insert((number, size.into()));
        }
    }
    (types, variables)
}

/// The element type of an array, or the target type of a pointer, in the table.
fn element(text: &str) -> &str {
    text.trim_end_matches([' ', '*', '[', ']'])
}

/// Makes the type that `text`, an entry of the table, describes, for a variable of this size in bytes.
fn made(unit: &mut TypeUnit, btf: &Btf<'_>, types: &Types, text: &str, size: u64) -> Option<UnitEntryId> {
    let (inner, is_array) = match text.strip_suffix("[]") {
        Some(inner) => (inner, true),
        None => (text, false),
    };
    let (mut entry, mut each) = match element(inner) {
        "void" => (None, 1),
        name => {
            let &(number, size) = types.get(name)?;
            (Some(unit.entry(btf, number)?), size)
        }
    };
    for _ in inner.matches('*') {
        (entry, each) = (Some(unit.pointer(entry)?), 8);
    }
    match is_array {
        true => unit.array(entry?, size.min(MAX_ARRAY_BYTES) / each.max(1)),
        false => entry,
    }
}

/// The kernel's variable with a name. `None` if several symbols have the name. The function tells variables by the
/// symbol's section and not by its class, because Linux 7 gives much data the class of code.
fn variable<'a>(symbols: &'a Symbols, name: &str) -> Option<&'a Symbol> {
    let is_data = |section: usize| symbols.sections()[section].access != Access::Code;
    let is_variable = |symbol: &&Symbol| symbol.module.is_none() && symbol.section.is_none_or(is_data);
    let mut named = symbols.all_named(name).filter(is_variable);
    named.next().filter(|_| named.next().is_none())
}

fn add_one(unit: &mut TypeUnit, symbol: &Symbol, kind: UnitEntryId) {
    let root = unit.root();
    let Some(entry) = unit.add(root, DW_TAG_variable) else { return };
    if unit.name(entry, Some(&symbol.name)).is_none() {
        return;
    }
    let mut place = Expression::new();
    place.op_addr(Address::Constant(symbol.address));
    unit.set(entry, DW_AT_type, AttributeValue::UnitRef(kind));
    unit.set(entry, DW_AT_location, AttributeValue::Exprloc(place));
    if symbol.is_global() {
        unit.set(entry, DW_AT_external, AttributeValue::FlagPresent);
    }
}
