// The operations of this folder, as OpenVINO finds them in the library.

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>

#include "attention/operator.h"
#include "linear/operator.h"
#include "recurrence/operator.h"

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>(
    {std::make_shared<ov::OpExtension<Attention>>(), std::make_shared<ov::OpExtension<Linear>>(),
     std::make_shared<ov::OpExtension<ExpertLinear>>(), std::make_shared<ov::OpExtension<Recurrence>>()}));
