#include "fault.h"

namespace covey {

const char* fault_name(FaultCode code) noexcept {
  switch (code) {
    case FaultCode::none:
      return "none";
    case FaultCode::length_checksum:
      return "length_checksum";
    case FaultCode::data_checksum:
      return "data_checksum";
    case FaultCode::out_of_bounds:
      return "out_of_bounds";
    case FaultCode::row:
      return "row";
    case FaultCode::unmapped:
      return "unmapped";
    case FaultCode::changed:
      return "changed";
    case FaultCode::index:
      return "index";
    case FaultCode::length_mismatch:
      return "length_mismatch";
    case FaultCode::label:
      return "label";
    case FaultCode::varint:
      return "varint";
    case FaultCode::tag:
      return "tag";
    case FaultCode::length:
      return "length";
    case FaultCode::group:
      return "group";
    case FaultCode::packed_floats:
      return "packed_floats";
    case FaultCode::missing:
      return "missing";
    case FaultCode::kind:
      return "kind";
    case FaultCode::count:
      return "count";
    case FaultCode::bytes:
      return "bytes";
    case FaultCode::range:
      return "range";
    case FaultCode::utf8:
      return "utf8";
    case FaultCode::type:
      return "type";
    case FaultCode::inexact:
      return "inexact";
    case FaultCode::canonical:
      return "canonical";
    case FaultCode::extra:
      return "extra";
    case FaultCode::string:
      return "string";
    case FaultCode::size:
      return "size";
    case FaultCode::splits:
      return "splits";
  }
  return "unknown";
}

}  // namespace covey
