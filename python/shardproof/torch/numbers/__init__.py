# SPDX-License-Identifier: Apache-2.0
"""Traces of steps that run with numbers, for `shardproof compare`.

`layout` states where a local tensor is in the whole one, `trace_file` writes what a rank held,
`perturbation` moves numbers by a rounding, `tracer` records a step, `traces` runs step functions on
processes of this machine, `script` runs a user's script, and `loop` records one iteration of a
loop. `boundaries` records what modules take and return, and replaces it by `reference_values`.
"""
