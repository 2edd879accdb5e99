// SPDX-License-Identifier: Apache-2.0
#include "commands/generate_command.h"

#include <filesystem>
#include <memory>
#include <string>

#include "commands/files.h"
#include "commands/streams.h"
#include "generate/generate.h"
#include "report/exit_codes.h"
#include "report/file.h"

namespace shardproof {
namespace {

struct GenerateArguments {
  generate::Options options;
  std::string prefix;
};

int runGenerate(const GenerateArguments& arguments) {
  const std::string model = arguments.prefix + ".model.json",
                    plan = arguments.prefix + ".plan.json";
  const std::string modelName = std::filesystem::path(model).filename().string();
  NamedFiles named;
  named.output("--output", model);
  named.output("--output", plan);
  named.check();
  generate::Files files;
  try {
    files = generate::generate(arguments.options, modelName);
  } catch (const generate::OptionError& error) {
    writeDiagnostic(std::string("generate: ") + error.what());
    return kExitUsage;
  }
  const FileText texts[] = {{model, files.model}, {plan, files.plan}};
  writeFilesAtomically(texts);  // not a model without its plan
  writeStandardOutput(model + "\n" + plan + "\n");
  return 0;
}

}  // namespace

void addGeneratorOptions(CLI::App* command, generate::Options& o) {
  command
      ->add_option("ARCH", o.architecture,
                   "mlp, gpt, llama3, mixtral, qwen3-moe, gpt-oss or deepseek-v3")
      ->required()
      ->check(CLI::IsMember(generate::architectures()))
      ->type_name("");

  const CLI::Range size(std::int64_t{1}, std::int64_t{1} << 40);
  const auto sized = [&](const char* name, std::int64_t& value, const char* help) {
    command->add_option(name, value, help)->check(size)->type_name("N")->group("Sizes");
  };
  std::string sizes;
  for (const std::string& architecture : generate::architectures()) {
    std::string own;
    for (const std::string& name : generate::presetsOf(architecture))
      own += (own.empty() ? " " : ", ") + name;
    sizes += architecture + ":" + own + "; ";
  }
  command
      ->add_option("--size", o.size,
                   sizes + "the first is the default, and the following replace single sizes of it")
      ->type_name("NAME")
      ->group("Sizes");
  sized("--layers", o.layers, "Layers");
  sized("--dim", o.dim, "Width of the residual stream");
  sized("--hidden", o.hidden, "Width inside the feed-forward block");
  sized("--heads", o.heads, "Attention heads");
  sized("--kv-heads", o.kvHeads, "Key-value heads; fewer than heads: grouped-query attention");
  sized("--head-dim", o.headDim,
        "Width of an attention head; default: the preset's, or dim / heads");
  sized("--seq", o.sequence, "Tokens in a sequence");
  sized("--vocab", o.vocabulary, "Vocabulary");
  const CLI::Range orNone(std::int64_t{0}, std::int64_t{1} << 40);
  std::string group = "Sizes of mixtures of experts";
  const auto expertSized = [&](const char* name, std::int64_t& value, const char* help) {
    command->add_option(name, value, help)->check(orNone)->type_name("N")->group(group);
  };
  expertSized("--dense-layers", o.denseLayers, "Leading layers without experts, --hidden wide");
  expertSized("--experts", o.experts, "Routed experts");
  expertSized("--active-experts", o.activeExperts, "Routed experts that a token chooses");
  expertSized("--shared-experts", o.sharedExperts, "Experts of every token");
  expertSized("--expert-hidden", o.expertHidden, "Width inside an expert");
  group = "Sizes of deepseek-v3";
  expertSized("--expert-groups", o.expertGroups, "Groups of experts");
  expertSized("--active-groups", o.activeGroups, "Groups that a token chooses its experts from");
  expertSized("--query-rank", o.queryRank, "Width of the queries' latent; 0: none");
  expertSized("--kv-rank", o.kvRank, "Width of the keys' and values' latent");
  expertSized("--nope-dim", o.noPositionDim, "Width of a head's part without positions");
  expertSized("--rope-dim", o.rotaryDim, "Width of a head's part with rotary positions");
  expertSized("--value-dim", o.valueDim, "Width of a head's values");
  expertSized("--mtp", o.mtp, "1: a module that predicts the token after the next");
  command
      ->add_option(
          "--pad-vocab-multiple", o.padVocabulary,
          "The vocabulary is padded to a multiple of N (of N times tp with --vocab-parallel)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group("Sizes");
  sized("--batch", o.batch,
        "Sequences (mlp: rows) in one step; default: one for each microbatch of each data-parallel "
        "rank");

  const auto degree = [&](const char* name, std::int64_t& value, const char* help) {
    command->add_option(name, value, help)
        ->check(size)
        ->type_name("N")
        ->capture_default_str()
        ->group("Parallelism");
  };
  degree("--dp", o.dp, "Data-parallel ranks");
  degree("--tp", o.tp, "Tensor-parallel ranks: column and row split");
  command
      ->add_flag("--sequence-parallel", o.sequenceParallel,
                 "Between the split regions, the sequence is cut over tp")
      ->group("Parallelism");
  command
      ->add_flag("--vocab-parallel", o.vocabularyParallel,
                 "Embedding, output layer and cross entropy cut over tp along the vocabulary")
      ->group("Parallelism");
  degree("--cp", o.cp,
         "Context-parallel ranks: each has a part of every sequence, and gathers keys and values");
  command
      ->add_flag("--cp-balanced", o.cpBalanced,
                 "Each context-parallel rank has an early and a late part of the sequence")
      ->group("Parallelism");
  command
      ->add_flag("--cp-ring", o.cpRing,
                 "Keys and values go round over the context-parallel ranks (ring attention)")
      ->group("Parallelism");
  degree("--ep", o.ep, "Ranks that hold different experts: of tp first, or of dp");
  command
      ->add_option("--expert-tp", o.expertTp,
                   "Ranks that share an expert: 1, or tp, along its hidden width (default: 1 if ep "
                   "is a multiple of tp, else tp)")
      ->check(size)
      ->type_name("N")
      ->group("Parallelism");
  degree("--pp", o.pp, "Pipeline stages");
  degree("--microbatches", o.microbatches, "Microbatches, whose gradients are accumulated");
  command
      ->add_option("--zero", o.zero,
                   "0: gradients all-reduced; 1: optimizer states sharded over dp; 2: and "
                   "gradients; 3: and parameters, gathered for each use")
      ->check(CLI::Range(0, 3))
      ->capture_default_str()
      ->type_name("N")
      ->group("Parallelism");
  command
      ->add_option("--schedule", o.schedule,
                   "gpipe (no order among microbatches is stated), 1f1b, interleaved")
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved"}))
      ->capture_default_str()
      ->type_name("NAME")
      ->group("Parallelism");
  degree("--virtual-stages", o.virtualStages, "Interleaved schedule: stages on each pipeline rank");
  command
      ->add_flag("--recompute", o.recompute,
                 "Recompute each layer's activations in the backward pass")
      ->group("Parallelism");

  command->add_option("--optimizer", o.optimizer, "adamw or sgd (default: adamw; mlp: sgd)")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->type_name("NAME")
      ->group("Training step");
  command->add_option("--lr", o.learningRate, "Learning rate")
      ->capture_default_str()
      ->type_name("X")
      ->group("Training step");
  command->add_option("--weight-decay", o.weightDecay, "Weight decay")
      ->capture_default_str()
      ->type_name("X")
      ->group("Training step");
  command
      ->add_option("--dropout", o.dropout,
                   "Probability of dropout; 0: none (default: 0.1 for gpt; the others have none)")
      ->type_name("X")
      ->group("Training step");
  command
      ->add_option("--balance-loss", o.balanceLoss,
                   "Weight of each expert layer's balance loss; 0: none")
      ->type_name("X")
      ->capture_default_str()
      ->group("Training step");
  command
      ->add_option("--clip", o.clip,
                   "Largest global gradient norm; 0: no clipping (default: 1.0; mlp: 0)")
      ->type_name("X")
      ->group("Training step");

  command
      ->add_option("--cut-points,--checkpoints", o.cutPoints,
                   "Lemmas in the lineage: all tensors, layers and parameters only, or none")
      ->check(CLI::IsMember({"all", "layers", "none"}))
      ->capture_default_str()
      ->type_name("WHICH");
}

void addGenerateCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand(
      "generate", "Write the model and the plan of a whole training step of a real architecture");
  addGeneratorOptions(command, arguments->options);
  command
      ->add_option("-o,--output", arguments->prefix,
                   "Writes PREFIX.model.json and PREFIX.plan.json")
      ->required()
      ->type_name("PREFIX");
  command->footer(
      "Options that contradict each other or cannot be met are reported with exit code 1.");
  command->callback([arguments, &run] { run = [arguments] { return runGenerate(*arguments); }; });
}

}  // namespace shardproof
