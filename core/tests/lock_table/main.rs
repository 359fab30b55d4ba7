//! The table as its callers meet it: every rule as a scene, and a random walk through all of them.

mod circles;
mod cost;
mod rules;
mod walk;
mod world;
