# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks, as nodes of the graph.

The mesh, process groups, collectives and messages.
"""
