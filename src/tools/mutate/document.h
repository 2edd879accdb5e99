// SPDX-License-Identifier: Apache-2.0
// A plan file as a JSON document that can be edited and written again. What is not edited comes out
// as it went in: keys keep their order, decimals their digits. Layout is that of `shardproof
// generate` (a line for each tensor, node and lineage entry), so that plans can be compared line by
// line.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "shardproof/error.h"

namespace shardproof::mutate {

// Decimals are held as nlohmann's binary values, which JSON text cannot contain: as doubles they
// would lose digits.
using Json = nlohmann::ordered_json;

// Throws InputError. A name that ends in ".gz" is gunzipped.
Json readDocument(const std::string& file);
std::string documentText(const Json& document);
// `text`, compressed if the name asks for it; replaces the file atomically. Throws
// std::runtime_error.
void writeDocument(const std::string& file, const std::string& text);

// Runs what reads a document as a plan: where it is none, what the library throws becomes an
// InputError. What exactly is missing is for `verify` to say, which reads every field.
template <class F>
auto asPlan(const std::string& file, F&& f) {
  const auto refused = [&](const std::exception& why) {
    return InputError(file, "", std::string("not a plan that can be mutated: ") + why.what());
  };
  try {
    return f();
  } catch (const Json::exception& error) {
    throw refused(error);
  } catch (const std::out_of_range&
               error) {  // of at(), where a tensor has fewer dimensions than its reader needs
    throw refused(error);
  } catch (const std::length_error& error) {  // the mutated plan would be too large
    throw refused(error);
  }
}

// Throws InputError where a size, coordinate or attribute of a plan is so large that what bugs add
// to it or multiply it by could leave 64 bits, and for more ranks or microbatches than are written
// out; to be called within asPlan().
void checkSizes(const Json& plan, const std::string& file);

Json decimal(const std::string& text);
bool isNumber(const Json& value);
double numberOf(const Json& value);
// value * factor / divisor: an integer if that is one, else the shortest decimal.
Json scaled(const Json& value, std::int64_t factor, std::int64_t divisor = 1);

}  // namespace shardproof::mutate
