// SPDX-License-Identifier: Apache-2.0
// What exporters write where the format has something else, and what to write instead. Each of
// these is refused by the reader or a check; here is only what the message says besides.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardproof::ir {

// ": `grad_of` belongs in the model", for a field that is none of `known`; nothing where it is no
// known slip and like none of them.
std::string suggestField(std::string_view field, const std::vector<std::string>& known);

// The same for an attribute that the operator does not have.
std::string suggestAttribute(std::string_view op, std::string_view attribute);

// For a name of an operator: `, did you mean "add"?`, also of "aten::add.Tensor".
std::string suggestOperator(std::string_view op);

// For a word that is none of `known`: "inputs" in the place of "input".
std::string suggestWord(std::string_view word, const std::vector<std::string>& known);

// For what the JSON parser said: NaN, single quotes, a file that is cut off.
std::string suggestText(std::string_view reason);

}  // namespace shardproof::ir
