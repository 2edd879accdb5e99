# SPDX-License-Identifier: Apache-2.0
"""Random training steps, right and wrong ones, whose truth numbers decide (adversary_test.py).

`steps` makes steps as source text from a random program of choices; each file of a class makes
steps of one kind of mistake. `truth` runs them with numbers; `verdicts` asks shardproof.
"""
