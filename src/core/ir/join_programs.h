// SPDX-License-Identifier: Apache-2.0
// Programs of a plan that are equal are one: whoever writes a program for each rank, or a fix that
// makes a rank's program that of the others again, pays nothing for it.
//
// Sound: what a rank runs is its program's nodes, of which each means the same wherever it is
// written, as coordinates that it names are coordinates of the mesh (or the rank's own). `at` only
// says which ranks. Two programs that are equal in all else, and the coordinates of which make up
// an axis, give each rank the same nodes as one that leaves the axis free.
#pragma once

#include "shardproof/graph.h"

namespace shardproof::ir {

// Programs whose ranks together are all coordinates of an axis, for the same ones of the others,
// become one, which stands for the first of them (Program::inFile); again along other axes.
void joinEqualPrograms(Plan& plan);

}  // namespace shardproof::ir
