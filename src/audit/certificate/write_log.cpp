// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <map>
#include <stdexcept>

#include <zlib.h>
#include <nlohmann/json.hpp>

#include "cache/cache_file.h"
#include "certificate/proof_log.h"
#include "util/base64.h"
#include "util/sha256.h"

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

std::string relativeTo(const std::string& log, const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path directory = fs::absolute(log, error).parent_path();
  const fs::path path = error ? fs::path() : fs::relative(file, directory, error);
  return error || path.empty() ? file : path.string();
}

std::string textOf(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json toJson(const ProofLog::File& file) { return {{"file", file.path}, {"sha256", file.sha256}}; }

Json toJson(const ProofLog::Entry& entry, std::size_t number) {
  Json json{{"entry", "/lineage/" + std::to_string(number)},
            {"tensor", entry.tensor},
            {"role", toString(entry.role)}};
  if (isGiven(entry.role)) return json;
  json["proved"] = entry.proof.proved;
  if (!entry.proof.proved) return json;
  json["class"] = entry.proof.classId;
  json["assumes"] = entry.proof.assumes;
  json["forbidden"] = entry.proof.forbidden;
  json["key"] = entry.proof.key;
  json["lumped"] = entry.proof.collapse;
  return json;
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16, kMemory = 8;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, kMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("cannot compress");
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // zlib does not write there
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool whole = stream.avail_in == text.size() && stream.avail_out == out.size() &&
                     deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (!whole) throw std::runtime_error("cannot compress " + std::to_string(text.size()) + " bytes");
  return out;
}

}  // namespace

ProofLog makeProofLog(const Problem& problem, const ProofRecord& record, Checker checker,
                      const std::string& program, const std::string& file) {
  const Plan& plan = problem.plan;
  if (record.entries.size() != plan.lineage.size())
    throw std::logic_error("a proof log of a plan that was not proved");
  const auto nameOf = [&](TensorId t) {
    return problem.names.text(problem.model.graph.tensors[t].name);
  };
  ProofLog log;
  log.file = file;
  log.program = program;
  log.version = proofVersion();
  log.checker = checker;
  log.model = {relativeTo(file, problem.model.file), problem.model.sha256};
  log.plan = {relativeTo(file, plan.file), plan.sha256};
  for (const ProofRecord::Class& c : record.classes)
    log.classes.push_back({c.method, sha256Hex(c.form), c.form});
  log.forbidden = record.forbidden;
  std::map<TensorId, std::vector<EntryId>> goals;
  for (const EntryId e : firstIds<EntryId>(plan.lineage.size())) {
    const LineageEntry& entry = plan.lineage[e];
    log.lineage.push_back({nameOf(entry.tensor), entry.role, record.entries[e]});
    if (entry.role == Role::kOutput) goals[entry.tensor].push_back(e);
  }
  log.positioning = plan.positioning;
  for (const TensorId output : problem.model.outputs)
    log.outputs.push_back({nameOf(output), goals[output]});
  return log;
}

std::string proofLogText(const ProofLog& log) {
  std::string text = "{\"format\": \"shardproof-proof-log\", \"version\": 1,\n";
  text += "\"program\": " + textOf(log.program) + ", \"rules\": " + textOf(log.version) +
          ", \"checker\": " + textOf(log.checker == Checker::kZ3 ? "z3" : "auto") + ",\n";
  text += "\"model\": " + textOf(toJson(log.model)) + ",\n\"plan\": " + textOf(toJson(log.plan)) +
          ",\n\"verdict\": \"equivalent\",\n";
  const auto list = [&](const char* name, std::size_t count, auto&& item) {
    text += std::string("\"") + name + "\": [";
    for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "\n" : ",\n") + textOf(item(i));
    text += "]";
  };
  list("classes", log.classes.size(), [&](std::size_t c) {
    return Json{{"class", c},
                {"method", toString(log.classes[c].method)},
                {"sha256", log.classes[c].sha256},
                {"form", base64(log.classes[c].form)}};
  });
  text += ",\n\"forbidden\": " + textOf(log.forbidden) + ",\n";
  list("lineage", log.lineage.size(), [&](std::size_t e) { return toJson(log.lineage[e], e); });
  text += ",\n\"positioning\": " + textOf(log.positioning) + ",\n";
  list("outputs", log.outputs.size(), [&](std::size_t o) {
    return Json{{"tensor", log.outputs[o].tensor}, {"entries", log.outputs[o].entries}};
  });
  text += "}\n";
  return log.file.ends_with(".gz") ? gzipped(text) : text;
}

}  // namespace shardproof
