//! Writes all mutants of a file into the file. Each mutant is in a branch that runs only if this mutant is active.
//!
//! `a + b` becomes `match (a, b) { (l, r) => match at(17) { 17 => l - r, 18 => l * r, _ => l + r } }`, and the
//! other kinds of mutants are similar. No operand is written twice, except the target of `+=`, so the code for
//! nested operators does not grow exponentially. The comments `/*{17,18*/` and `/*}*/` enclose code that belongs to
//! the mutants 17 and 18. If the compiler reports an error in this code, these mutants cannot be built.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::list::{Genre, Mutant, Place};

/// A mutant's number, and its replacement text.
type Change = (u32, String);
/// Maps each changed location of a file to the mutants of this location. A location may have several mutants.
type Changes = BTreeMap<(Genre, Place), Vec<Change>>;

/// A source file with its mutants.
pub struct Rewritten {
    pub text: String,
    /// Maps every mutant in the text to the number of its location.
    pub places: BTreeMap<u32, u32>,
}

/// `mutants` are the mutants of this file, with their numbers.
pub fn rewrite<'a>(
    source: &str,
    mutants: impl Iterator<Item = (u32, &'a Mutant)>,
    without: &BTreeSet<u32>,
) -> Result<Rewritten> {
    let mut changes = Changes::new();
    for (number, mutant) in mutants.filter(|(number, _)| !without.contains(number)) {
        let change = (number, mutant.replacement.clone());
        changes.entry((mutant.genre, mutant.span.start)).or_default().push(change);
    }
    let file = syn::parse_file(source).context("syn cannot parse it")?;
    let mut finder = Finder { changes, sites: Vec::new() };
    finder.visit_file(&file);
    let mut sites = finder.sites;
    // Outer sites come before inner sites. This also holds for two equal ranges: the finder puts the outer site
    // first, and the sort is stable.
    sites.sort_by_key(|site| (site.range.start, std::cmp::Reverse(site.range.end)));
    let places = sites.iter().flat_map(Site::places).collect();
    let text = Renderer { source, sites: &sites }.render(0..source.len(), 0);
    Ok(Rewritten { text, places })
}

/// A piece of the source that is rewritten.
struct Site {
    range: Range<usize>,
    changes: Vec<Change>,
    form: Form,
}

/// The syntax of a site, with the ranges of its parts.
enum Form {
    /// An operator that moves its operands, such as `+`.
    Arithmetic {
        left: Range<usize>,
        operator: Range<usize>,
        right: Range<usize>,
    },
    /// An operator that only borrows its operands, such as `<`.
    Comparison {
        left: Range<usize>,
        operator: Range<usize>,
        right: Range<usize>,
    },
    /// `&&` or `||`, which may skip its right side.
    Lazy {
        left: Range<usize>,
        is_and: bool,
        right: Range<usize>,
    },
    /// `+=` or a similar operator.
    Assignment {
        left: Range<usize>,
        operator: Range<usize>,
        right: Range<usize>,
    },
    Unary {
        operator: Range<usize>,
        operand: Range<usize>,
        is_literal: bool,
    },
    /// The location after a function's opening brace.
    Body,
    /// The location after the pattern of a `match` arm that has no guard.
    Arm,
    /// The guard of a `match` arm, and the number of the mutant that removes the whole arm.
    Guard {
        without_arm: Option<u32>,
    },
    /// A struct expression. For each change, the range of the field and its comma.
    Fields {
        fields: Vec<Range<usize>>,
    },
}

impl Site {
    fn place(&self) -> u32 {
        let arm = match self.form {
            Form::Guard { without_arm } => without_arm,
            _ => None,
        };
        self.numbers().chain(arm).min().expect("a site has changes")
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.changes.iter().map(|&(number, _)| number)
    }

    fn places(&self) -> Vec<(u32, u32)> {
        let arm = match self.form {
            Form::Guard { without_arm } => without_arm,
            _ => None,
        };
        self.numbers().chain(arm).map(|number| (number, self.place())).collect()
    }
}

struct Finder {
    changes: Changes,
    sites: Vec<Site>,
}

impl Finder {
    fn take(&mut self, genre: Genre, at: &impl Spanned) -> Vec<Change> {
        let start = at.span().start();
        self.changes
            .remove(&(genre, Place { line: start.line, column: start.column + 1 }))
            .unwrap_or_default()
    }

    fn add(&mut self, range: Range<usize>, changes: Vec<Change>, form: Form) {
        if !changes.is_empty() {
            self.sites.push(Site { range, changes, form });
        }
    }
}

fn range(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Whether the expression is a chain of `&&` with a `let` pattern. No other operator may replace such an `&&`.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        use syn::BinOp::*;
        let changes = self.take(Genre::BinaryOperator, &node.op);
        let (left, operator, right) = (range(&node.left), range(&node.op), range(&node.right));
        let form = match node.op {
            And(_) | Or(_) => Form::Lazy { left, is_and: matches!(node.op, And(_)), right },
            Eq(_) | Ne(_) | Lt(_) | Le(_) | Gt(_) | Ge(_) => Form::Comparison { left, operator, right },
            AddAssign(_) | SubAssign(_) | MulAssign(_) | DivAssign(_) | RemAssign(_) | BitXorAssign(_)
            | BitAndAssign(_) | BitOrAssign(_) | ShlAssign(_) | ShrAssign(_) => {
                Form::Assignment { left, operator, right }
            }
            _ => Form::Arithmetic { left, operator, right },
        };
        if !has_let(&node.left) && !has_let(&node.right) {
            self.add(range(node), changes, form);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let changes = self.take(Genre::UnaryOperator, &node.op);
        let is_literal = matches!(*node.expr, syn::Expr::Lit(_));
        let form = Form::Unary { operator: range(&node.op), operand: range(&node.expr), is_literal };
        self.add(range(node), changes, form);
        visit::visit_expr_unary(self, node);
    }

    /// Only a function's body has changes of this genre.
    fn visit_block(&mut self, node: &'ast syn::Block) {
        if let Some(first) = node.stmts.first() {
            let changes = self.take(Genre::FnValue, first);
            let behind_brace = range(node).start + 1;
            self.add(behind_brace..behind_brace, changes, Form::Body);
        }
        visit::visit_block(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let arm = self.take(Genre::MatchArm, node);
        match &node.guard {
            None => {
                let behind_pattern = range(&node.pat).end;
                self.add(behind_pattern..behind_pattern, arm, Form::Arm);
            }
            Some((_, guard)) => {
                let changes = self.take(Genre::MatchArmGuard, guard);
                let without_arm = arm.first().map(|&(number, _)| number);
                if !changes.is_empty() || without_arm.is_some() {
                    self.sites.push(Site { range: range(guard), changes, form: Form::Guard { without_arm } });
                }
            }
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        let mut starts: Vec<usize> = node.fields.iter().map(|field| range(field).start).collect();
        starts.extend(node.dot2_token.map(|dots| range(&dots).start));
        let (mut changes, mut fields) = (Vec::new(), Vec::new());
        for (number, field) in node.fields.iter().enumerate() {
            for change in self.take(Genre::StructField, field) {
                changes.push(change);
                fields.push(starts[number]..starts.get(number + 1).copied().unwrap_or(range(field).end));
            }
        }
        self.add(range(node), changes, Form::Fields { fields });
        visit::visit_expr_struct(self, node);
    }
}

struct Renderer<'a> {
    source: &'a str,
    sites: &'a [Site],
}

impl Renderer<'_> {
    /// Returns the source of `range`. In this source, the sites from number `first` on are rewritten.
    fn render(&self, range: Range<usize>, first: usize) -> String {
        let mut text = String::new();
        let mut at = range.start;
        for (number, site) in self.sites.iter().enumerate().skip(first) {
            if site.range.start >= range.end {
                break;
            }
            if site.range.start >= at {
                text.push_str(&self.source[at..site.range.start]);
                text.push_str(&self.site(site, number + 1));
                at = site.range.end;
            }
        }
        text.push_str(&self.source[at..range.end]);
        text
    }

    /// Returns the rewritten source of a site. `inner` is the number of the first site that may be inside this
    /// site.
    fn site(&self, site: &Site, inner: usize) -> String {
        let part = |range: &Range<usize>| self.render(range.clone(), inner);
        let raw = |range: &Range<usize>| &self.source[range.clone()];
        let at = format!("crate::mutation::at({})", site.place());
        // The `match` has one arm for each change, and one arm for the unchanged source.
        let choose = |change: &dyn Fn(usize, &str) -> String, unchanged: String| {
            let arms = site.changes.iter().enumerate().map(|(index, (number, new))| {
                let change = change(index, new);
                format!("{number} => {}, ", enclose(&[*number], &change))
            });
            format!("match {at} {{ {}_ => {unchanged} }}", arms.collect::<String>())
        };
        let text = match &site.form {
            Form::Arithmetic { left, operator, right } => {
                let choice = choose(&|_, new| format!("l {new} r"), format!("l {} r", raw(operator)));
                format!("(match ({}, {}) {{ (l, r) => {choice} }})", part(left), part(right))
            }
            Form::Comparison { left, operator, right } => {
                let choice = choose(&|_, new| format!("*l {new} *r"), format!("*l {} *r", raw(operator)));
                format!("(match (&({}), &({})) {{ (l, r) => {choice} }})", part(left), part(right))
            }
            // If the left side of `&&` is `false`, or the left side of `||` is `true`, the right side is not
            // evaluated. A mutant exchanges `&&` and `||`.
            Form::Lazy { left, is_and, right } => format!(
                "({{ let l: bool = {}; if l {} ({at} == {}) {{ {} }} else {{ l }} }})",
                part(left),
                if *is_and { "!=" } else { "==" },
                site.place(),
                part(right)
            ),
            Form::Assignment { left, operator, right } => {
                let to = part(left);
                let choice = choose(&|_, new| format!("{to} {new} r"), format!("{to} {} r", raw(operator)));
                format!("(match {} {{ r => {choice} }})", part(right))
            }
            // Keep a literal together with its sign, because 128 may be out of range where -128 is in range.
            Form::Unary { operator, operand, is_literal: true } => {
                format!("({})", choose(&|_, _| part(operand), format!("{}{}", raw(operator), part(operand))))
            }
            Form::Unary { operator, operand, is_literal: false } => format!(
                "(match {} {{ v => {} }})",
                part(operand),
                choose(&|_, _| "v".to_owned(), format!("{}v", raw(operator)))
            ),
            Form::Body => format!(" {};", choose(&|_, new| format!("return {new}"), "()".to_owned())),
            Form::Arm => format!(" if {at} != {}", site.place()),
            Form::Guard { without_arm } => {
                let arm = without_arm.map(|number| format!("{at} != {number} && ")).unwrap_or_default();
                format!("{arm}({})", choose(&|_, new| new.to_owned(), part(&site.range)))
            }
            Form::Fields { fields } => format!(
                "({})",
                choose(
                    &|index, _| {
                        let field = &fields[index];
                        part(&(site.range.start..field.start)) + &part(&(field.end..site.range.end))
                    },
                    part(&site.range)
                )
            ),
        };
        let numbers: Vec<u32> = site.places().into_iter().map(|(number, _)| number).collect();
        enclose(&numbers, &text)
    }
}

fn enclose(numbers: &[u32], text: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("/*{{{}*/{text}/*}}*/", numbers.join(","))
}

/// Returns the mutants of the innermost rewritten code around `offset`. The list is empty if the code at `offset`
/// is original source.
pub fn enclosing(text: &str, offset: usize) -> Vec<u32> {
    let before = &text[..offset];
    let mut ended = 0;
    for (at, _) in before.rmatch_indices("/*") {
        let marker = &text[at + 2..];
        if marker.starts_with("}*/") {
            ended += 1;
        } else if let Some(numbers) = marker.strip_prefix('{').and_then(|rest| rest.split("*/").next()) {
            if ended == 0 {
                return numbers.split(',').filter_map(|number| number.parse().ok()).collect();
            }
            ended -= 1;
        }
    }
    Vec::new()
}

/// Returns the mutants that switch off an arm of a `match` in this part of the text.
pub fn arms_within(text: &str, part: Range<usize>) -> Vec<u32> {
    let part = &text[part];
    let begins = part.match_indices("/*{").map(|(at, marker)| &part[at + marker.len()..]);
    let arms = begins
        .filter_map(|rest| rest.split_once("*/"))
        .filter(|(_, code)| code.starts_with(" if crate::mutation"));
    arms.flat_map(|(numbers, _)| numbers.split(',')).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the source of a function with `body` in line 2, rewritten with one mutant.
    fn rewritten(body: &str, genre: &str, replacement: &str, column: usize) -> String {
        let mutant = serde_json::json!({
            "name": "", "package": "", "file": "", "genre": genre, "replacement": replacement, "function": null,
            "span": { "start": { "line": 2, "column": column } },
        });
        let mutant: Mutant = serde_json::from_value(mutant).expect("a mutant");
        let source = format!("fn f() {{\n{body}\n}}");
        rewrite(&source, [(7, &mutant)].into_iter(), &BTreeSet::new()).expect("it can be parsed").text
    }

    #[test]
    fn each_kind_of_mutant_is_behind_a_question() {
        let cases = [
            (
                "a + b",
                "BinaryOperator",
                "-",
                3,
                "(match (a, b) { (l, r) => match AT { 7 => l - r, _ => l + r } })",
            ),
            (
                "a < b",
                "BinaryOperator",
                ">",
                3,
                "(match (&(a), &(b)) { (l, r) => match AT { 7 => *l > *r, _ => *l < *r } })",
            ),
            (
                "a && b",
                "BinaryOperator",
                "||",
                3,
                "({ let l: bool = a; if l != (AT == 7) { b } else { l } })",
            ),
            (
                "a || b",
                "BinaryOperator",
                "&&",
                3,
                "({ let l: bool = a; if l == (AT == 7) { b } else { l } })",
            ),
            ("a += b", "BinaryOperator", "-=", 3, "(match b { r => match AT { 7 => a -= r, _ => a += r } })"),
            ("!a", "UnaryOperator", "", 1, "(match a { v => match AT { 7 => v, _ => !v } })"),
            ("-1", "UnaryOperator", "", 1, "(match AT { 7 => 1, _ => -1 })"),
            ("match a { 1 => b, _ => c }", "MatchArm", "", 11, "match a { 1 if AT != 7 => b, _ => c }"),
            (
                "match a { 1 if d => b, _ => c }",
                "MatchArm",
                "",
                11,
                "match a { 1 if AT != 7 && (match AT { _ => d }) => b, _ => c }",
            ),
            (
                "match a { 1 if d => b, _ => c }",
                "MatchArmGuard",
                "true",
                16,
                "match a { 1 if (match AT { 7 => true, _ => d }) => b, _ => c }",
            ),
            (
                "S { a: 1, b: 2, ..s }",
                "StructField",
                "",
                5,
                "(match AT { 7 => S { b: 2, ..s }, _ => S { a: 1, b: 2, ..s } })",
            ),
        ];
        for (body, genre, replacement, column, expected) in cases {
            let text = rewritten(body, genre, replacement, column);
            let plain =
                text.replace("/*{7*/", "").replace("/*}*/", "").replace("crate::mutation::at(7)", "AT");
            assert_eq!(plain, format!("fn f() {{\n{expected}\n}}"));
        }
    }

    #[test]
    fn a_function_may_return_at_once() {
        let text = rewritten("g()", "FnValue", "1", 1);
        assert_eq!(
            text,
            "fn f() {/*{7*/ match crate::mutation::at(7) { 7 => /*{7*/return 1/*}*/, _ => () };/*}*/\ng()\n}"
        );
    }

    #[test]
    fn a_chain_with_let_stays_as_it_is() {
        let body = "if let Some(a) = b && c {}";
        assert_eq!(rewritten(body, "BinaryOperator", "||", 20), format!("fn f() {{\n{body}\n}}"));
    }

    #[test]
    fn arms_that_a_mutant_switches_off_are_found_in_a_part() {
        let text = rewrite_two_arms();
        let at = |what: &str| text.find(what).expect("it is there");
        for (from, to, expected) in
            [("match", "end", vec![7]), ("match", "a()", vec![]), ("b()", "end", vec![])]
        {
            assert_eq!(arms_within(&text, at(from)..at(to)), expected, "{from} {to}");
        }
    }

    fn rewrite_two_arms() -> String {
        rewritten("match a() { 1 => b(), _ => c }; end", "MatchArm", "", 13)
    }

    #[test]
    fn an_error_is_about_the_innermost_mutants_around_it() {
        let text = "a /*{1,2*/ b /*{1*/ c /*}*/ d /*{2*/ e /*}*/ f /*}*/ g /* h";
        let numbers = |at: &str| enclosing(text, text.rfind(at).expect("it is there"));
        for (at, expected) in [
            ("a", vec![]),
            ("b", vec![1, 2]),
            ("c", vec![1]),
            ("d", vec![1, 2]),
            ("e", vec![2]),
            ("f", vec![1, 2]),
            ("g", vec![]),
        ] {
            assert_eq!(numbers(at), expected, "{at}");
        }
    }
}
