// SPDX-License-Identifier: Apache-2.0
#include "commands/manual.h"

#include <vector>

#include "report/version.h"

namespace shardproof {

namespace {

// As text of roff: backslashes and hyphens, and lines that would begin a request.
std::string roff(const std::string& text) {
  std::string out;
  bool begin = true;
  for (const char c : text) {
    if (begin && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
    begin = c == '\n';
  }
  return out;
}

std::string optionLine(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames())
    names += (names.empty() ? "" : ", ") + ("\\fB" + roff("-" + name) + "\\fR");
  for (const std::string& name : option.get_lnames())
    names += (names.empty() ? "" : ", ") + ("\\fB" + roff("--" + name) + "\\fR");
  if (names.empty()) names = "\\fI" + roff(option.get_name()) + "\\fR";
  else if (option.get_expected_max() > 0 && !option.get_type_name().empty())
    names += " \\fI" + roff(option.get_type_name()) + "\\fR";
  std::string text = ".TP\n" + names + "\n" + roff(option.get_description());
  if (!option.get_default_str().empty())
    text += " (default: " + roff(option.get_default_str()) + ")";
  return text + "\n";
}

void addCommand(const CLI::App& command, const std::string& path, std::string& page) {
  page += ".SS \"" + roff(path) + "\"\n" + roff(command.get_description()) + "\n";
  for (const CLI::Option* option : command.get_options()) page += optionLine(*option);
  // A footer is text that is laid out already.
  if (const std::string footer = command.get_footer(); !footer.empty() && path != "verify")
    page += ".PP\n" + roff(footer) + "\n";
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    addCommand(*sub, path + " " + sub->get_name(), page);
}

}  // namespace

std::string manualPage(const CLI::App& app) {
  std::string page = ".TH SHARDPROOF 1 \"\" \"shardproof " + std::string(kVersion) +
                     "\" \"User Commands\"\n"
                     ".SH NAME\nshardproof \\- proves that a distributed training plan computes "
                     "what its single\\-device model computes\n"
                     ".SH SYNOPSIS\n.B shardproof verify\n.RI [ options ] \" PLAN\" ...\n.br\n"
                     ".B shardproof\n.I COMMAND\n.RI [ options ]\n"
                     ".SH DESCRIPTION\n" +
                     roff(app.get_description()) +
                     "\n.PP\nA plan says which operators each rank runs, on which slices, and "
                     "which collectives tie the ranks together. It is compared with the model, "
                     "the graph as a single device would run it.\n.SH COMMANDS\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    addCommand(*command, command->get_name(), page);
  std::string footer = app.get_footer();
  const std::size_t codes = footer.find("Exit codes:\n");
  page += ".SH EXIT STATUS\n.nf\n" +
          roff(codes == std::string::npos ? footer : footer.substr(codes + 12)) + "\n.fi\n";
  return page +
         ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nIf set and not empty, no colour unless "
         "\\fB\\-\\-color always\\fR.\n.TP\n.B TMPDIR\nWhere \\fBsweep\\fR keeps its files while "
         "it "
         "runs.\n"
         ".SH EXAMPLES\n.nf\nshardproof verify exported/run.plan.json\n"
         "shardproof verify plans/ \\-\\-json report.json \\-\\-html report.html\n"
         "shardproof lint exported/run.plan.json\n"
         "shardproof generate gpt \\-\\-size 175B \\-\\-dp 16 \\-\\-tp 8 \\-\\-pp 8 \\-o "
         "gpt175\n.fi\n";
}

}  // namespace shardproof
