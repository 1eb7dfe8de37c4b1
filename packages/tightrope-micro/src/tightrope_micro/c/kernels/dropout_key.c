/* One more step: what its dropouts draw from. */
void k_dropout_key(int32_t *step, int32_t *key)
{
    *step = (int32_t)((uint32_t)*step + 1u);
    *key = *step;
}
