//! The kinds of callbacks that Linux runs later: which function calls them, and how a callback is armed.
//!
//! Follows Linux 6.1 to 7.2: `kernel/time/timer.c`, `kernel/time/hrtimer.c`, `kernel/workqueue.c`,
//! `kernel/rcu/tree.c`, `kernel/softirq.c`, `kernel/irq/handle.c`, `kernel/kthread.c`.

use machine::Processor;
use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;

/// The numbers of the registers with a function's first arguments.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// The kind of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The function of a timer.
    Timer,
    /// The function of a high-resolution timer.
    HighResolutionTimer,
    /// The function of a work item.
    Work,
    /// A function that RCU calls after a grace period.
    Rcu,
    /// The function of a softirq.
    Softirq,
    /// The function of a tasklet.
    Tasklet,
    /// A handler of an interrupt.
    InterruptHandler,
    /// The function of a kernel thread.
    KernelThread,
    /// Any other function that was called through a pointer.
    Pointer,
}

impl Kind {
    /// The kind in words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Timer => "timer",
            Kind::HighResolutionTimer => "high-resolution timer",
            Kind::Work => "work item",
            Kind::Rcu => "RCU callback",
            Kind::Softirq => "softirq",
            Kind::Tasklet => "tasklet",
            Kind::InterruptHandler => "interrupt handler",
            Kind::KernelThread => "kernel thread",
            Kind::Pointer => "function pointer",
        }
    }

    /// The word for the step that makes the kernel call the callback later.
    pub fn armed(self) -> &'static str {
        match self {
            Kind::Timer | Kind::HighResolutionTimer => "armed",
            Kind::Work => "queued",
            Kind::Rcu | Kind::InterruptHandler => "registered",
            Kind::Softirq => "raised",
            Kind::Tasklet => "scheduled",
            Kind::KernelThread => "created",
            Kind::Pointer => "written",
        }
    }
}

/// How the kernel arms and calls one kind of callback.
#[derive(Debug)]
pub(crate) struct Rules {
    pub kind: Kind,
    /// The functions that call a callback of this kind.
    pub callers: &'static [&'static str],
    /// How such a callback is armed.
    pub armed: Armed,
    /// The kernel's own functions for arming, which other code calls. A name that ends with `*` stands for all names
    /// that begin so.
    pub library: &'static [&'static str],
}

/// The step that arms a callback.
#[derive(Debug)]
pub(crate) enum Armed {
    /// The step writes a field of the object to which the callback's first argument points.
    Writes {
        structure: &'static str,
        /// The field, and the field's own fields.
        path: &'static [(&'static str, &'static str)],
        /// Functions that also write the field, but arm nothing.
        except: &'static [&'static str],
    },
    /// The step is the first instruction of one of these functions, if `fits` is true.
    Calls { functions: &'static [&'static str], fits: fn(&Callback, &Processor<'_, Instructions>) -> bool },
    /// The step sets the callback's bit in the processor's word of pending softirqs.
    Raises,
}

/// A call of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    /// The address of the function.
    pub function: u64,
    /// The function's arguments.
    pub arguments: [u64; 6],
    /// The number of the softirq whose function this is.
    pub softirq: Option<u64>,
    /// Offsets in `struct tasklet_struct`.
    pub tasklet: Option<TaskletFields>,
}

/// Offsets in `struct tasklet_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskletFields {
    pub function: u64,
    pub data: u64,
}

/// The arguments of the function that a processor is about to call, or whose first instruction is the next one.
pub(crate) fn arguments(processor: &Processor<'_, Instructions>) -> [u64; 6] {
    ARGUMENTS.map(|number| processor.state().gpr[number])
}

/// The rules for all kinds but [`Kind::Pointer`].
pub(crate) const RULES: [Rules; 8] = [
    Rules {
        kind: Kind::Timer,
        callers: &["call_timer_fn", "expire_timers", "__run_timers", "__run_timer_base", "run_timer_softirq"],
        armed: Armed::Writes { structure: "timer_list", path: &[("timer_list", "expires")], except: &[] },
        library: &["mod_timer*", "__mod_timer", "add_timer*", "timer_reduce", "internal_add_timer"],
    },
    Rules {
        kind: Kind::HighResolutionTimer,
        callers: &["__run_hrtimer", "__hrtimer_run_queues", "hrtimer_run_queues", "hrtimer_interrupt"],
        armed: Armed::Writes {
            structure: "hrtimer",
            path: &[("hrtimer", "node"), ("timerqueue_node", "expires")],
            except: &[],
        },
        library: &["hrtimer_start*", "__hrtimer_start*", "hrtimer_forward*", "hrtimer_sleeper_start*"],
    },
    Rules {
        kind: Kind::Work,
        callers: &["process_one_work"],
        armed: Armed::Writes {
            structure: "work_struct",
            path: &[("work_struct", "data")],
            except: &[
                "process_one_work",
                "pwq_activate_inactive_work",
                "pwq_activate_first_inactive",
                "__pwq_activate_work",
                "pwq_dec_nr_in_flight",
                "node_activate_pending_pwq",
            ],
        },
        library: &[
            "insert_work",
            "__queue_work*",
            "queue_work_on",
            "queue_work_node",
            "__queue_delayed_work",
            "queue_delayed_work_on",
            "mod_delayed_work_on",
        ],
    },
    Rules {
        kind: Kind::Rcu,
        callers: &["rcu_do_batch", "srcu_invoke_callbacks", "rcu_tasks_invoke_cbs"],
        armed: Armed::Writes {
            structure: "callback_head",
            path: &[("callback_head", "func")],
            except: &["rcu_do_batch", "srcu_invoke_callbacks", "rcu_tasks_invoke_cbs"],
        },
        library: &["call_rcu*", "__call_rcu*", "call_srcu", "__call_srcu", "srcu_gp_start_if_needed"],
    },
    Rules {
        kind: Kind::Softirq,
        callers: &["__do_softirq", "handle_softirqs", "__softirqentry_text_start"],
        armed: Armed::Raises,
        library: &["raise_softirq*", "__raise_softirq*", "__tasklet_schedule_common"],
    },
    Rules {
        kind: Kind::Tasklet,
        callers: &["tasklet_action_common", "tasklet_action", "tasklet_hi_action"],
        armed: Armed::Calls {
            functions: &["__tasklet_schedule", "__tasklet_hi_schedule"],
            fits: |callback, processor| {
                let [tasklet, ..] = arguments(processor);
                let word = |offset: u64| {
                    let mut bytes = [0; 8];
                    let count = processor.peek(tasklet.wrapping_add(offset), &mut bytes);
                    (count == bytes.len()).then(|| u64::from_le_bytes(bytes))
                };
                let [argument, ..] = callback.arguments;
                callback.tasklet.is_some_and(|fields| {
                    word(fields.function) == Some(callback.function)
                        && (tasklet == argument || word(fields.data) == Some(argument))
                })
            },
        },
        library: &["__tasklet_schedule*", "__tasklet_hi_schedule*"],
    },
    Rules {
        kind: Kind::InterruptHandler,
        callers: &[
            "__handle_irq_event_percpu",
            "handle_irq_event_percpu",
            "handle_irq_event",
            "irq_thread_fn",
        ],
        armed: Armed::Calls {
            functions: &["request_threaded_irq"],
            fits: |callback, processor| {
                let [interrupt, handler, threaded, _, _, device] = arguments(processor);
                let [expected_interrupt, expected_device, ..] = callback.arguments;
                interrupt & 0xffff_ffff == expected_interrupt & 0xffff_ffff
                    && device == expected_device
                    && (handler == callback.function || threaded == callback.function)
            },
        },
        library: &["request_threaded_irq", "devm_request_threaded_irq", "request_any_context_irq"],
    },
    Rules {
        kind: Kind::KernelThread,
        callers: &["kthread", "ret_from_fork"],
        armed: Armed::Calls {
            functions: &["__kthread_create_on_node", "kernel_thread", "user_mode_thread"],
            fits: |callback, processor| {
                let [function, data, ..] = arguments(processor);
                function == callback.function && data == callback.arguments[0]
            },
        },
        library: &["__kthread_create*", "kthread_create*", "kernel_thread", "user_mode_thread"],
    },
];

impl Rules {
    /// The rules for a callback that a function with this name has called.
    pub fn of_caller(name: &str) -> Option<&'static Rules> {
        RULES.iter().find(|rules| rules.callers.contains(&name))
    }

    /// Whether a function is one of the kernel's own functions for arming.
    pub fn is_library(&self, name: &str) -> bool {
        self.library.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == *pattern,
        })
    }
}
