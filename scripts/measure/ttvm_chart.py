"""Draws the figures of bench-ttvm: what recording and checkpoints cost each workload, and how long going back takes.
Beside them are the figures of King, Dunlap and Chen, "Debugging operating systems with time-traveling virtual machines"
(USENIX 2005)."""

# Percentages from the paper's text: the cost of logging, and of checkpoints at each interval.
PAPER = "King, Dunlap, Chen 2005"
PAPER_PERCENT = {"log": (3, 12), "every 25 s": (0, 4), "every 10 s": (15, 33)}
PAPER_STEP_S = 12
COLOURS = ["#4477aa", "#ee6677", "#228833"]
BAND = "#cccccc"


class NoChart(Exception):
    """The picture cannot be drawn. The text, for the user, says why."""


def draw(results, titles, path):
    """Writes the SVG. `titles` has the workloads' names."""
    try:
        import matplotlib
    except ImportError as error:
        raise NoChart("the picture is drawn by matplotlib: install python3-matplotlib, or leave out --svg") from error
    matplotlib.use("svg")
    # With these settings, the same figures give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "ttvm", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot

    figure, (costs, ways) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    draw_costs(costs, results, titles)
    draw_ways(ways, results, titles)
    costs.legend(loc="upper left", frameon=False, fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def draw_costs(axes, results, titles):
    """Draws a group of bars for the log and for each interval, and the paper's ranges behind the bars."""
    kinds = [kind for kind in results[0]["spans"] if kind != "run"]
    width = 0.8 / len(results)
    for group, kind in enumerate(kinds):
        if kind in PAPER_PERCENT:
            low, high = PAPER_PERCENT[kind]
            axes.bar(group, high - low, 0.9, bottom=low, color=BAND, label=PAPER if group == 0 else None)
    for number, result in enumerate(results):
        places = [group + (number - (len(results) - 1) / 2) * width for group in range(len(kinds))]
        run_s = result["spans"]["run"]["cpu_s"]
        percents = [100 * (result["spans"][kind]["cpu_s"] / run_s - 1) for kind in kinds]
        axes.bar(places, percents, width * 0.9, color=COLOURS[number], label=titles[result["load"]])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(kinds)), ["log alone", *[f"checkpoints\n{kind}" for kind in kinds[1:]]])
    axes.set_title("recording: CPU time more than running, %", fontsize=9)


def draw_ways(axes, results, titles):
    """Draws the time of the first step back by distance, and the paper's reverse step."""
    for number, result in enumerate(results):
        rows = result["travel"]
        distances = [row["back_s"] for row in rows]
        axes.plot(distances, [row["first_s"] for row in rows], "o-", color=COLOURS[number], markersize=3)
        axes.plot(distances, [row["reverse_step_s"] for row in rows], "s:", color=COLOURS[number], markersize=3)
    axes.axhline(PAPER_STEP_S, color=BAND, linewidth=4)
    axes.text(0.01, 0.6 * PAPER_STEP_S, f"a reverse step, {PAPER}", fontsize=8, color="#666666", verticalalignment="top")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"guest seconds back from the end; checkpoints {results[0]['travelled']}")
    axes.set_title("first step back there (solid), further steps (dotted), s", fontsize=9)
