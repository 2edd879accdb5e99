// SPDX-License-Identifier: Apache-2.0
// What a row of ParameterTable says, in words.
#pragma once

#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// "partial: each rank makes a part of a sum; reduced by all_reduce at train.py:31".
std::string textOf(const ParameterTable::Axis& axis);

// The rows of layers that differ in the layer's number only made one: its parameters are
// "layers.*.norm.weight (32)".
std::vector<ParameterTable::Row> layersTogether(const std::vector<ParameterTable::Row>& rows);

}  // namespace shardproof
