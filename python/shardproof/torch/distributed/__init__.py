# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks: the mesh, process groups, collectives and messages, as nodes of the graph."""
