// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz files: a zip archive with one .npy array for each name. What is read and written is
// checked byte by byte, as files come from anywhere.
#pragma once

#include <map>
#include <string>

#include "executor/interpret.h"

namespace shardproof::executor {

// All arrays of the file. Booleans, integers, floats (16, 32, 64 bits) and complex numbers of
// either byte order; in C or in Fortran order. Throws InputError (the pointer is the array's name)
// for anything else, and for whole numbers beyond 2^53 in magnitude.
std::map<std::string, Array> readNpz(const std::string& file);

// Reals as float64, integers as int64, complex numbers as complex128; not compressed. The file is
// replaced as a whole. Throws std::runtime_error.
void writeNpz(const std::string& file, const std::map<std::string, const Array*>& arrays);

}  // namespace shardproof::executor
