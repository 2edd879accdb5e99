// SPDX-License-Identifier: Apache-2.0
// Programs with complex numbers as programs without.
#pragma once

#include <string>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// The same program, in which a complex array is a tuple of its real and its imaginary part. As a
// parameter or a result of the program it is two arrays, one after the other, so the numbers of
// those behind move. Throws InputError for an instruction of complex numbers that has no such form.
Module withoutComplex(Module module, const std::string& file);

}  // namespace shardproof::hlo
