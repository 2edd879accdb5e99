// SPDX-License-Identifier: Apache-2.0
#include "reader/model_reader.h"

#include "ir/suggestions.h"
#include "reader/file_header.h"
#include "reader/graph_reader.h"
#include "reader/json_stream.h"

namespace shardproof::reader {

namespace {

class ModelClient : public StreamClient {
 public:
  explicit ModelClient(ir::ProblemDraft& problem)
      : problem_(problem),
        graph_(GraphReader::Source::kModel, problem.names, problem.attributes),
        header_("shardproof-model") {
    graph_.begin(&problem.model.graph, nullptr, nullptr);
  }

  int open(int state, std::string_view key, bool object, const Place&) override {
    if (state == kOutside && object) return kModel;
    if (state == kModel && key == "tensors" && object) return tensorsSeen_ = true, kTensors;
    if (state == kModel && key == "nodes" && !object) return nodesSeen_ = true, kNodes;
    return kWhole;
  }

  void value(int state, std::string_view key, const Value& v) override {
    switch (state) {
      case kTensors:
        graph_.readTensor(key, v);
        break;
      case kNodes:
        graph_.readNode(v);
        break;
      case kModel:
        field(key, v);
        break;
      default:
        v.expected("an object (a model)");
    }
  }

  void close(int state, const Place& place) override {
    if (state != kModel) return;
    header_.checkComplete(place);
    if (!tensorsSeen_) place.fail("the field \"tensors\" is missing");
    if (!nodesSeen_) place.fail("the field \"nodes\" is missing");
    if (!outputsSeen_) place.fail("the field \"outputs\" is missing");
  }

 private:
  enum State { kModel = 1, kTensors, kNodes };

  void field(std::string_view key, const Value& v) {
    if (header_.read(key, v)) return;
    if (key == "name") {
      problem_.model.name = v.string();
    } else if (key == "source") {
      v.string();  // where the file came from: for people only
    } else if (key == "outputs") {
      outputsSeen_ = true;
      for (const Value output : v.expectArray())
        problem_.model.outputs.push_back(problem_.names.intern(output.name()));
    } else if (key == "arguments") {
      for (const Value argument : v.expectArray())
        problem_.model.arguments.push_back(problem_.names.intern(argument.name()));
    } else if (key == "tensors") {
      tensorsSeen_ = true;
      v.expectObject();
    } else if (key == "nodes") {
      nodesSeen_ = true;
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) +
             "\", expected only \"format\", \"version\", \"name\", \"source\", \"tensors\", "
             "\"nodes\", \"outputs\" and \"arguments\"" +
             ir::suggestField(key, {"format", "version", "name", "source", "tensors", "nodes",
                                    "outputs", "arguments"}));
    }
  }

  ir::ProblemDraft& problem_;
  GraphReader graph_;
  FileHeader header_;
  bool tensorsSeen_ = false, nodesSeen_ = false, outputsSeen_ = false;
};

}  // namespace

void readModel(const Input& input, ir::ProblemDraft& problem) {
  problem.model.file = input.name;
  ModelClient client(problem);
  problem.model.sha256 = readJson(input, client);
}

}  // namespace shardproof::reader
