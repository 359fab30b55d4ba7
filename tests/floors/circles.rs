//! Files that use themselves by way of others.

use petgraph::algo::{astar, tarjan_scc};
use petgraph::graphmap::DiGraphMap;

use crate::uses::Uses;

type Graph<'a> = DiGraphMap<&'a str, ()>;

/// A complaint about each set of files of which each leads to each: the shortest circle among them.
pub fn complaints(uses: &Uses) -> Vec<String> {
    let graph: Graph<'_> = uses
        .lines
        .keys()
        .map(|(file, used)| (&**file, &**used))
        .collect();
    let mut sets = tarjan_scc(&graph);
    sets.retain(|files| files.len() > 1);
    sets.iter_mut().for_each(|files| files.sort_unstable());
    sets.sort();
    let sets = sets.iter();
    sets.map(|files| complaint(uses, files, &shortest(&graph, files)))
        .collect()
}

/// The shortest circle that goes through one of these files, which is named first and last.
fn shortest<'a>(graph: &Graph<'a>, files: &[&'a str]) -> Vec<&'a str> {
    let circles = files.iter().flat_map(|file| {
        let next = graph.neighbors(file);
        next.filter_map(|next| way_home(graph, file, next))
    });
    circles.min_by_key(Vec::len).unwrap_or_default()
}

fn way_home<'a>(graph: &Graph<'a>, home: &'a str, next: &'a str) -> Option<Vec<&'a str>> {
    let (_, way) = astar(graph, next, |file| file == home, |_| 1, |_| 0)?;
    Some([vec![home], way].concat())
}

fn complaint(uses: &Uses, files: &[&str], circle: &[&str]) -> String {
    let steps = circle.windows(2);
    let steps: Vec<String> = steps
        .map(|step| format!("    {}", uses.told(step[0], step[1])))
        .collect();
    format!(
        "{} files use each other in circles: {}; the shortest circle:\n{}",
        files.len(),
        files.join(", "),
        steps.join("\n")
    )
}
