#include "device/kernel_compiler.h"

#include <locale.h>

#include <map>
#include <mutex>
#include <vector>

#include "base/library.h"
#include "base/status.h"

namespace hetcomm {
namespace {

using Program = void*;

// clang-format off
#define HETCOMM_COMPILER_SYMBOLS(X) \
  X(Version, int, (int* major, int* minor)) \
  X(GetErrorString, const char*, (int error)) \
  X(CreateProgram, int, (Program* program, const char* text, const char* name, int headers, \
                         const char* const* header_texts, const char* const* header_names)) \
  X(DestroyProgram, int, (Program* program)) \
  X(AddNameExpression, int, (Program program, const char* expression)) \
  X(CompileProgram, int, (Program program, int options, const char* const* option)) \
  X(GetProgramLogSize, int, (Program program, size_t* bytes)) \
  X(GetProgramLog, int, (Program program, char* log)) \
  X(GetLoweredName, int, (Program program, const char* expression, const char** symbol))
// clang-format on

// One run-time compiler, kept for the life of the process.
struct Compiler {
#define X(name, result, parameters) result(*name) parameters = nullptr;
  HETCOMM_COMPILER_SYMBOLS(X)
#undef X
  int (*GetCodeSize)(Program program, size_t* bytes) = nullptr;
  int (*GetCode)(Program program, char* code) = nullptr;
  const Vendor::Compiler* row = nullptr;
  std::string description;
};

Compiler load(const Vendor& vendor) {
  const Vendor::Compiler& row = vendor.compiler;
  const std::string prefix = row.prefix;
  const std::string get = prefix + "Get" + row.code;
  std::vector<std::string> required;
#define X(name, result, parameters) required.push_back(prefix + #name);
  HETCOMM_COMPILER_SYMBOLS(X)
#undef X
  required.insert(required.end(), {get + "Size", get});
  const Library library = Library::find(vendor.compiler_search(), required);
  Compiler compiler;
#define X(name, result, parameters) \
  compiler.name = library.symbol<decltype(compiler.name)>((prefix + #name).c_str());
  HETCOMM_COMPILER_SYMBOLS(X)
#undef X
  compiler.GetCodeSize = library.symbol<decltype(compiler.GetCodeSize)>((get + "Size").c_str());
  compiler.GetCode = library.symbol<decltype(compiler.GetCode)>(get.c_str());
  compiler.row = &row;
  int major = 0, minor = 0;
  compiler.Version(&major, &minor);
  compiler.description = std::string(row.name) + " " + std::to_string(major) + "." +
                         std::to_string(minor) + " (" + library.path() + ")";
  return compiler;
}

const Compiler& compiler_of(const Vendor& vendor) {
  static auto* mutex = new std::mutex;
  static auto* loaded = new std::map<std::string, Compiler>;
  std::lock_guard lock(*mutex);
  auto found = loaded->find(vendor.name);
  if (found == loaded->end()) found = loaded->emplace(vendor.name, load(vendor)).first;
  return found->second;
}

// Gives the thread its locale back: NVRTC 11.8 leaves it with another one, in which Python's open()
// decodes no UTF-8.
class LocaleKept {
 public:
  LocaleKept() : before_(uselocale(nullptr)) {}
  ~LocaleKept() { uselocale(before_); }
  LocaleKept(const LocaleKept&) = delete;

 private:
  const locale_t before_;
};

// Owns a program of the compiler.
class Compilation {
 public:
  explicit Compilation(const Compiler& compiler) : compiler_(compiler) {
    check("CreateProgram",
          compiler.CreateProgram(&program_, device_text(), "hetcomm.cu", 0, nullptr, nullptr));
  }
  ~Compilation() { compiler_.DestroyProgram(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  CompiledKernel compile(const std::string& architecture, const std::string& kernel) {
    LocaleKept locale;
    const std::string expression = "hetcomm::" + kernel;
    check("AddNameExpression", compiler_.AddNameExpression(program_, expression.c_str()));
    std::vector<std::string> options = compiler_.row->options;
    if (!architecture.empty()) {
      options.push_back(compiler_.row->architecture_option + architecture);
    }
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    const int error =
        compiler_.CompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
    check("CompileProgram of " + kernel + " for " +
              (architecture.empty() ? "this device" : architecture),
          error, true);
    CompiledKernel compiled;
    const char* symbol = nullptr;
    check("GetLoweredName", compiler_.GetLoweredName(program_, expression.c_str(), &symbol));
    compiled.symbol = symbol;
    size_t bytes = 0;
    check("GetCodeSize", compiler_.GetCodeSize(program_, &bytes));
    compiled.code.resize(bytes);
    check("GetCode", compiler_.GetCode(program_, compiled.code.data()));
    return compiled;
  }

 private:
  void check(const std::string& call, int error, bool with_log = false) {
    if (error == 0) return;
    std::string text = compiler_.description + ": " + call + ": " + compiler_.GetErrorString(error);
    size_t bytes = 0;
    if (with_log && compiler_.GetProgramLogSize(program_, &bytes) == 0 && bytes > 1) {
      std::string log(bytes, '\0');
      compiler_.GetProgramLog(program_, log.data());
      log.resize(log.find_last_not_of(std::string("\n\0", 2)) + 1);
      text += "\n" + log + "\n";
    }
    throw Error(Code::vendor,
                text + "; if this release does not know the device, " + compiler_.row->remedy);
  }

  const Compiler& compiler_;
  Program program_ = nullptr;
};

}  // namespace

CompiledKernel compile_kernel(const Vendor& vendor, const std::string& architecture,
                              const std::string& kernel) {
  return Compilation(compiler_of(vendor)).compile(architecture, kernel);
}

std::string describe_compiler(const Vendor& vendor) { return compiler_of(vendor).description; }

}  // namespace hetcomm
